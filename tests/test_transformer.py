"""The decoder: attention by three routes, causality, padding, windows, initialisation, an untrained model at chance."""

import math

import numpy as np
import pytest
import torch

from shiftbound import InputError, positions, tasks
from shiftbound.stick_breaking import stick_breaking
from shiftbound.transformer import Transformer, attention


def by_loops(q, k, v, bias, mask, scale):
    """The definition, number by number, in Python's own floats."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    for b, h, i in np.ndindex(*q.shape[:3]):
        keys = [j for j in range(i + 1) if mask is None or mask.expand(*q.shape[:2], -1, -1)[b, h, i, j]]
        logits = []
        for j in keys:
            dot = sum(float(x) * float(y) for x, y in zip(q[b, h, i], k[b, h, j], strict=True))
            extra = 0.0 if bias is None else float(bias.expand(*q.shape[:2], -1, -1)[b, h, i, j])
            logits.append(scale * dot + extra)
        weights = [math.exp(each - max(logits)) for each in logits]
        for j, weight in zip(keys, weights, strict=True):
            out[b, h, i] += weight / sum(weights) * v[b, h, j].double()
    return out


CASES = {
    "plain": {},
    "scale": {"scale": 40.0},
    "bias": {"bias": (5, 5)},
    "bias a head": {"bias": (3, 5, 5)},
    "mask": {"mask": (2, 1, 5, 5)},
    "all": {"bias": (2, 3, 5, 5), "mask": (5, 5), "scale": 0.7},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_attention_by_three_routes(case, dtype):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=dtype) for _ in range(3))
    options = dict(CASES[case])
    if "bias" in options:
        options["bias"] = torch.randn(*options["bias"], dtype=dtype)
    if "mask" in options:
        options["mask"] = torch.rand(*options["mask"]) < 0.5
        options["mask"] |= torch.eye(5, dtype=torch.bool)
    fused = attention(q, k, v, **options)
    explicit, weights = attention(q, k, v, return_weights=True, **options)
    slow = by_loops(q, k, v, options.get("bias"), options.get("mask"), options.get("scale", 0.5))
    tolerance = 500 * torch.finfo(dtype).eps  # logits up to about 200, each rounded
    assert fused.dtype == explicit.dtype == dtype
    assert (fused.double() - slow).abs().max() <= tolerance
    assert (explicit.double() - slow).abs().max() <= tolerance
    assert torch.allclose(weights.sum(-1), torch.ones(2, 3, 5, dtype=dtype))
    assert (weights.triu(1) == 0).all()


def test_attention_with_values_of_another_width():
    q, v = torch.randn(1, 2, 6, 3, dtype=torch.float64), torch.randn(1, 2, 6, 7, dtype=torch.float64)
    out, weights = attention(q, q, v, return_weights=True)
    assert torch.allclose(attention(q, q, v), out)
    assert torch.allclose(weights @ v, out)


def test_a_mask_cannot_open_the_future():
    q = torch.zeros(1, 1, 4, 2)
    everything = torch.ones(4, 4, dtype=torch.bool)
    assert torch.equal(attention(q, q, q + 1, mask=everything), attention(q, q, q + 1))
    _, weights = attention(q, q, q, mask=everything, return_weights=True)
    assert torch.equal(weights[0, 0], torch.tril(torch.ones(4, 4)) / torch.arange(1, 5)[:, None])


# Breaking a stick -------------------------------------------------------------------------------------------------


def stick_by_loops(q, k, v, bias, mask, scale):
    """The definition: walk back from i, give away a share of what is left."""
    out, weights = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64), torch.zeros(*q.shape[:3], q.shape[2])
    for b, h, i in np.ndindex(*q.shape[:3]):
        left = 1.0
        for j in range(i, -1, -1):
            if mask is not None and not mask.expand(*q.shape[:2], -1, -1)[b, h, i, j]:
                continue
            z = scale * sum(float(x) * float(y) for x, y in zip(q[b, h, i], k[b, h, j], strict=True))
            z += 0.0 if bias is None else float(bias.expand(*q.shape[:2], -1, -1)[b, h, i, j])
            share = 1 / (1 + math.exp(-z)) if z > -700 else 0.0
            weights[b, h, i, j], left = left * share, left * (1 - share)
            out[b, h, i] += weights[b, h, i, j].item() * v[b, h, j].double()
    return out, weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_stick_breaking_against_loops(case, dtype):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=dtype) for _ in range(3))
    options = dict(CASES[case])
    if "bias" in options:
        options["bias"] = torch.randn(*options["bias"], dtype=dtype)
    if "mask" in options:
        options["mask"] = torch.rand(*options["mask"]) < 0.5
    out, weights = stick_breaking(q, k, v, return_weights=True, **options)
    slow, by_hand = stick_by_loops(q, k, v, options.get("bias"), options.get("mask"), options.get("scale", 0.5))
    assert out.dtype == dtype and (out.double() - slow).abs().max() < 1e-5
    assert (weights - by_hand).abs().max() < 1e-5 and (weights.triu(1) == 0).all()
    assert (weights >= 0).all() and weights.sum(-1).max() <= 1 + 500 * torch.finfo(dtype).eps
    with torch.no_grad():
        assert torch.allclose(stick_breaking(q, k, v, **options), out, atol=1e-6)


def test_a_stick_in_blocks_of_queries_is_the_same_stick(monkeypatch):
    monkeypatch.setattr("shiftbound.stick_breaking.BLOCK", 64)
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 2, 37, 4, dtype=torch.float64) for _ in range(3))
    bias, mask = torch.randn(2, 37, 37, dtype=torch.float64), torch.rand(2, 1, 37, 37) < 0.7
    with torch.no_grad():
        blocks = stick_breaking(q, k, v, bias=bias, mask=mask)
    assert torch.allclose(blocks, stick_breaking(q, k, v, bias=bias, mask=mask), atol=1e-12)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_sticks_of_extreme_logits_stay_finite_and_at_most_one(size):
    torch.manual_seed(2)
    q, k, v = (torch.randn(1, 2, 64, 8).mul(scale).requires_grad_() for scale in (size, 1.0, 1.0))
    out, weights = stick_breaking(q, k, v, return_weights=True)
    assert weights.isfinite().all() and weights.sum(-1).max() <= 1 + 1e-3
    out.square().sum().backward()
    assert all(each.grad.isfinite().all() for each in (q, k, v))


def test_the_most_recent_of_equal_keys_wins():
    z = torch.full((1, 1, 6, 6), -50.0)
    z[..., [1, 3]] = 20.0
    q = torch.zeros(1, 1, 6, 1)
    _, weights = stick_breaking(q, q, q, bias=z, return_weights=True)
    assert weights[0, 0, 5, 3] > 1 - 1e-6 and weights[0, 0, 5, 1] < 1e-6
    _, softmax = attention(q, q, q, bias=z, return_weights=True)
    assert softmax[0, 0, 5, 3].item() == pytest.approx(0.5)


def test_log_scaling_multiplies_every_logit():
    torch.manual_seed(3)
    tokens = torch.randint(5, (2, 9))
    for form in ("softmax", "stick-breaking"):
        model = Transformer(5, 3, 1, 16, "alibi", window=4, attention=form, log_scale=True).double()
        q, k, _ = model.blocks[0].heads_of(model.embed(tokens), torch.arange(9), model.encoding)
        seen = torch.arange(1, 10).clamp(max=4).double()
        bias = model.encoding.bias(torch.arange(9), torch.arange(9))
        logits = (q @ k.mT / 4 + bias) * torch.log(1 + seen)[:, None]
        window = torch.ones(9, 9, dtype=torch.bool).tril().triu(-3)
        none, run = torch.zeros_like(q), {"softmax": attention, "stick-breaking": stick_breaking}[form]
        _, expected = run(none, none, none, bias=logits, mask=window, return_weights=True)
        assert torch.allclose(model.attention(tokens, 0), expected)


@pytest.mark.parametrize("form", ["softmax", "stick-breaking"])
@pytest.mark.parametrize("log_scale", [False, True])
def test_padding_and_the_future_for_every_form_of_attention(form, log_scale):
    torch.manual_seed(4)
    model = Transformer(5, 3, 2, 32, "counter", attention=form, log_scale=log_scale).double().eval()
    row, tokens = torch.randint(5, (6,)), torch.randint(5, (1, 9))
    tokens[0, 3:] = row
    padding = torch.arange(9)[None] < 3
    with torch.no_grad():
        assert (model(tokens, padding=padding)[0, 3:] - model(row[None])[0]).abs().max() < 1e-12
        other = tokens.clone()
        other[0, 6:] = (other[0, 6:] + 1) % 5
        assert torch.equal(model(tokens)[0, :6], model(other)[0, :6])


# The model --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("encoding", positions.ENCODINGS)
def test_the_future_never_matters(encoding, window):
    torch.manual_seed(1)
    model = Transformer(5, 3, 3, 32, encoding, window=window).eval()
    tokens = torch.randint(5, (4, 12))
    other = tokens.clone()
    other[:, 7:] = (other[:, 7:] + 1) % 5
    with torch.no_grad():
        one, two = model.states(tokens), model.states(other)
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a[:, :7], b[:, :7])
    assert (one[-1][:, 7] - two[-1][:, 7]).abs().min() > 0


@pytest.mark.parametrize("encoding", positions.ENCODINGS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_equals_its_rows_alone(encoding, side):
    torch.manual_seed(2)
    model = Transformer(5, 3, 2, 32, encoding, window=6).double().eval()
    lengths, width = (3, 9, 6), 9
    rows = [torch.randint(5, (n,)) for n in lengths]
    tokens = torch.randint(5, (3, width))  # what stands in the padding must not matter
    padding = torch.ones(3, width, dtype=torch.bool)
    ids = torch.zeros(3, width, dtype=torch.int64)
    for r, (row, n) in enumerate(zip(rows, lengths, strict=True)):
        place = slice(width - n, None) if side == "left" else slice(None, n)
        tokens[r, place], padding[r, place], ids[r, place] = row, False, torch.arange(n)
    with torch.no_grad():
        batch = model(tokens, ids, padding)
        for r, row in enumerate(rows):
            alone = model(row[None])[0]
            assert (batch[r, ~padding[r]] - alone).abs().max() < 1e-12
    assert batch.isfinite().all()


def test_a_window_sees_that_many_tokens_and_no_more():
    torch.manual_seed(3)
    model = Transformer(5, 3, 1, 16, "rope", window=4).eval()
    tokens = torch.randint(5, (1, 12))
    with torch.no_grad():
        last = model(tokens)[0, -1]
        for place in range(12):
            other = tokens.clone()
            other[0, place] = (other[0, place] + 1) % 5
            changed = not torch.equal(model(other)[0, -1], last)
            assert changed == (place >= 8)


def test_states_end_in_the_logits():
    model, tokens = Transformer(7, 4, 3, 32, "ape"), torch.randint(7, (2, 5))
    states = model.states(tokens)
    assert [tuple(state.shape) for state in states] == [(2, 5, 32)] * 5
    assert torch.equal(model.head(states[-1]), model(tokens))
    assert torch.equal(model.norm(states[-2]), states[-1])
    assert torch.equal(states[0], model.embed(tokens) + model.encoding.table[:5])
    assert torch.equal(states[1], model.blocks[0](states[0], torch.arange(5), model.encoding, None, None))


def test_a_block_against_its_formula():
    """Pre-norm, heads of 16 in the order q, k, v, residual twice, exact GELU."""
    torch.manual_seed(4)
    model = Transformer(5, 3, 1, 32, "nope").double()
    block, x = model.blocks[0], torch.randn(2, 6, 32, dtype=torch.float64)

    def norm(x):
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()

    q, k, v = (norm(x) @ block.qkv.weight.T).chunk(3, -1)
    heads = []
    for h in (slice(0, 16), slice(16, 32)):
        logits = q[..., h] @ k[..., h].transpose(1, 2) / 4 + torch.full((6, 6), -math.inf).triu(1)
        heads.append(logits.softmax(-1) @ v[..., h])
    y = x + torch.cat(heads, -1) @ block.out.weight.T
    inner = norm(y) @ block.up.weight.T
    expected = y + (inner * (1 + torch.erf(inner / math.sqrt(2))) / 2) @ block.down.weight.T
    assert torch.allclose(block(x, torch.arange(6), model.encoding, None, None), expected, atol=1e-12)


@pytest.mark.parametrize("depth", [1, 8])
def test_initialisation(depth):
    torch.manual_seed(5)
    model = Transformer(50, 3, depth, 128, "ape")
    assert model.embed.weight.std().item() == pytest.approx(0.3, rel=0.05)
    block = model.blocks[-1]
    for weight, shrunk in (
        (block.qkv.weight[:128], False),
        (block.qkv.weight[256:], False),
        (block.out.weight, True),
        (block.up.weight, False),
        (block.down.weight, True),
        (model.head.weight, False),
    ):
        bound = math.sqrt(6 / sum(weight.shape)) / (math.sqrt(2 * depth) if shrunk else 1)
        assert 0.9 * bound < weight.abs().max() <= bound * 1.000001
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert all((bias == 0).all() for name, bias in model.named_parameters() if name.endswith("bias"))


@pytest.mark.parametrize("name", ["dyck", "search", "chain", "scoping"])
def test_an_untrained_model_scores_chance(name):
    """Over random initialisations the expected accuracy of an untrained model is 1 / classes, since the classes are
    exchangeable in the head. One model's answers depend on each other, so the standard error is over 60 models."""
    task = tasks.get(name)
    batch = task.sample(np.random.default_rng(0), 16, 32)
    scores = []
    for seed in range(60):
        torch.manual_seed(seed)
        model = Transformer(task.vocab, task.classes, 1, 16, "rope")
        with torch.no_grad():
            right = model(torch.from_numpy(batch.tokens)).argmax(-1).numpy() == batch.labels
        scores.append(right[batch.labels >= 0].mean())
    error = np.std(scores, ddof=1) / math.sqrt(len(scores))
    assert abs(np.mean(scores) - 1 / task.classes) < 4 * error
    assert error < 0.05


def test_dropout_acts_in_training_only():
    model, tokens = Transformer(5, 3, 1, 16, "rope", dropout=0.5), torch.randint(5, (2, 6))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))


def test_every_parameter_is_trained():
    for encoding in positions.ENCODINGS:
        model = Transformer(5, 3, 2, 32, encoding)
        model(torch.randint(5, (4, 9))).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, (encoding, name)


@pytest.mark.parametrize(
    "bad",
    [
        {"depth": -1},
        {"width": 50, "heads": 3},
        {"heads": 0},
        {"window": 0},
        {"encoding": "rotary"},
        {"width": 0},
        {"attention": "hard"},
    ],
)
def test_bad_sizes_are_refused(bad):
    with pytest.raises(InputError, match="is not allowed; it must be"):
        Transformer(**{"vocab": 5, "classes": 3, "depth": 1, "width": 32, **bad})


def test_two_encodings_differ_where_order_matters():
    """Without causal depth and without positions, a permutation of the past cannot be seen; with positions it is."""
    torch.manual_seed(6)
    tokens, swapped = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[2, 1, 3, 4]])
    for encoding in positions.ENCODINGS:
        model = Transformer(5, 3, 1, 32, encoding).double().eval()
        change = (model(tokens)[0, -1] - model(swapped)[0, -1]).abs().max().item()
        assert (change < 1e-12) == (encoding == "nope"), encoding
