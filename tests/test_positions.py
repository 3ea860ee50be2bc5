"""Each encoding against its published rule, and what a shift of all ids changes."""

import math

import numpy as np
import pytest
import torch

from shiftbound import InputError, positions, words
from shiftbound.positions import ALiBi, Counter, LearnedAPE, OffsetAPE, RandomAPE, Rotary, SinusoidalAPE, T5Bias
from shiftbound.transformer import Transformer

SHIFTS = (1, 17, 200)


# The rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [1e4, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotary_is_multiplication_by_a_complex_phase(base, dtype):
    torch.manual_seed(0)
    q, ids = torch.randn(2, 3, 5, 8, dtype=dtype), torch.tensor([0, 3, 4, 90, 1000])
    turned = Rotary(8, base).rotate(q, ids)
    assert turned.dtype == dtype
    for b, h, i, k in np.ndindex(2, 3, 5, 4):
        z = complex(q[b, h, i, 2 * k], q[b, h, i, 2 * k + 1])
        angle = int(ids[i]) * base ** (-2 * k / 8)
        w = z * complex(math.cos(angle), math.sin(angle))
        found = complex(turned[b, h, i, 2 * k], turned[b, h, i, 2 * k + 1])
        assert abs(w - found) <= 4 * torch.finfo(dtype).eps * abs(z)


def test_rotary_notices_other_ids():
    q, ids, rotary = torch.randn(1, 1, 3, 4), torch.arange(3), Rotary(4)
    first = rotary.rotate(q, ids)
    assert torch.equal(first, rotary.rotate(q, torch.arange(3)))
    ids += 5
    assert torch.equal(rotary.rotate(q, ids), Rotary(4).rotate(q, torch.arange(5, 8)))
    assert rotary.rotate(q.double(), ids).dtype == torch.float64
    rows = torch.stack([torch.arange(3), torch.arange(3) + 5])
    both = rotary.rotate(q.expand(2, 1, 3, 4), rows)
    assert torch.equal(both, torch.cat([first, rotary.rotate(q, ids)]))


def test_a_table_made_in_inference_mode_serves_training():
    model, tokens = Transformer(5, 3, 1, 16, "rope"), torch.zeros(1, 4, dtype=torch.int64)
    with torch.inference_mode():
        model(tokens)
    model(tokens).sum().backward()


def published_slopes(heads: int) -> list[float]:
    """Press et al.'s get_slopes, word for word in meaning: start 2^(-2^-(log2 n - 3)), then its powers."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return published_slopes(closest) + published_slopes(2 * closest)[0::2][: heads - closest]


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16])
def test_alibi_slopes_are_the_published_ones(heads):
    bias = ALiBi(heads).bias(torch.arange(7), torch.arange(7))
    assert bias.shape == (heads, 7, 7)
    for h, slope in enumerate(published_slopes(heads)):
        for i in range(7):
            for j in range(i + 1):
                assert bias[h, i, j].item() == pytest.approx(-slope * (i - j), rel=1e-6)


def test_alibi_for_three_heads_by_hand():
    assert ALiBi(3).slopes.tolist() == [1 / 16, 1 / 256, 1 / 4]


def test_t5_buckets_are_the_published_ones():
    def published(distance: int) -> int:  # _relative_position_bucket of T5, bidirectional=False, in single precision
        if distance < 16:
            return distance
        grown = np.log(np.float32(distance) / np.float32(16)) / np.float32(math.log(128 / 16)) * np.float32(16)
        return min(16 + int(grown), 31)

    encoding = T5Bias(2)
    ids = torch.arange(400)
    bias = encoding.bias(ids, ids)
    for distance in range(400):
        assert torch.equal(bias[:, 399, 399 - distance], encoding.table[published(distance)])


def test_sinusoidal_by_hand():
    code = SinusoidalAPE(6).embed(torch.zeros(1, 2, 6, dtype=torch.float64), torch.tensor([3, 700]))
    for row, m in enumerate((3, 700)):
        for k in range(3):
            angle = m * 10000 ** (-2 * k / 6)
            assert code[0, row, 2 * k].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert code[0, row, 2 * k + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_learned_positions_have_the_scale_and_rows_asked_for():
    torch.manual_seed(0)
    table = LearnedAPE(64, rows=400, scale=0.3).table
    assert table.shape == (400, 64)
    # The variance of 25600 normal numbers is within 5 standard errors of .09.
    assert table.var().item() == pytest.approx(0.09, abs=5 * 0.09 * math.sqrt(2 / 25600))


# Ids outside the table, odd sizes, unknown names --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ape", "ape-offset", "ape-random"])
@pytest.mark.parametrize("bad", [512, -1])
def test_an_id_past_the_table_is_refused_in_one_sentence(name, bad):
    model = Transformer(5, 3, 1, 16, name)
    ids = torch.tensor([0, 1, bad])
    with pytest.raises(InputError) as refused:
        model(torch.zeros(1, 3, dtype=torch.int64), ids)
    assert (
        str(refused.value)
        == f"ids = {bad} is not allowed; it must be a position id from 0 to 511, the rows of the table"
    )
    assert model(torch.zeros(1, 3, dtype=torch.int64), torch.tensor([509, 510, 511])).isfinite().all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: SinusoidalAPE(7),
        lambda: Rotary(5),
        lambda: Rotary(4, base=0.0),
        lambda: ALiBi(0),
        lambda: LearnedAPE(4, rows=0),
        lambda: T5Bias(1, buckets=1),
        lambda: T5Bias(1, max_distance=16),
        lambda: positions.get("rotary", width=16, heads=1),
        lambda: OffsetAPE(4, rows=8).training_ids(9, np.random.default_rng(0)),
        lambda: RandomAPE(4, rows=8).training_ids(9, np.random.default_rng(0)),
        lambda: Counter(4, heads=0),
        lambda: Counter(4, heads=1).hand_set([[1.0] * 4], decay=[0.0], offset=[0.0]),
        lambda: Counter(4, heads=1, kernel=False).hand_set([[1.0] * 4], decay=[1.0], offset=[0.0]),
    ],
)
def test_bad_input_is_refused(make):
    with pytest.raises(InputError, match="is not allowed; it must be"):
        make()


# Counters ---------------------------------------------------------------------------------------------------------


def test_a_hand_set_counter_counts_the_true_heights():
    word = words.sample(np.random.default_rng(0), 200, 300, k=3)
    embedding = torch.eye(7)[torch.from_numpy(np.pad(word + 1, ((0, 0), (1, 0))))]  # BOS 0, opens 1-3, closes 4-6
    sign = [[0.0, 4.0, 4.0, 4.0, -4.0, -4.0, -4.0], [1e-3] * 7]
    counter = Counter(7, heads=2).hand_set(sign, decay=[2.0, 0.5], offset=[1.0, 0.0])
    counts = counter.counts(embedding)
    assert (counts[:, 0].detach().numpy() == words.heights(word, 3)).all() and (counts[:, 1] == 0).all()
    _, bias = counter.enter(embedding, torch.arange(301))
    assert torch.allclose(bias[5, 0, 40, 7], -2.0 * (counts[5, 0, 40] + 1.0 - counts[5, 0, 7]) ** 2)
    assert bias[:, 1].abs().max() == 0


def test_annealing_ends_in_integers_and_keeps_a_gradient():
    torch.manual_seed(0)
    x = torch.randn(3, 40, 16)
    for name, soft in (("counter", 0.5), ("counter-feature", 0.5), ("counter-soft", 1.1)):
        counter = positions.get(name, width=16, heads=4)
        for progress in (0.0, 0.2, 0.49, 0.5, 0.8, 1.0):
            counter.schedule(progress)
            counts = counter.counts(x)
            whole = torch.equal(counts, counts.round())
            assert whole == (progress >= soft), (name, progress)
            if name != "counter-soft":
                assert counter.gain.item() == pytest.approx(1 + 5 * min(1, 2 * progress))
                assert bool(counter.rounded) == (progress >= 0.5)
        counter.gain.fill_(1.0)  # so that nothing is saturated
        counter.counts(x).square().sum().backward()
        assert counter.weight.grad.abs().min() > 0


def test_rounding_passes_the_gradient_of_the_soft_increment():
    torch.manual_seed(1)
    counter, x = Counter(8, heads=2), torch.randn(1, 5, 8)
    slopes = []
    for rounded in (False, True):
        counter.rounded.fill_(rounded)
        slopes.append(torch.autograd.grad(counter.counts(x)[0, 0, -1], counter.weight)[0])
    assert torch.allclose(*slopes) and slopes[0][0].abs().max() > 0


def test_padded_tokens_count_nothing():
    torch.manual_seed(2)
    counter, x = Counter(8, heads=2), torch.randn(1, 6, 8)
    padding = torch.tensor([[True, False, False, True, False, False]])
    counts = counter.counts(x, padding)
    assert torch.allclose(counts[..., 1:3], counter.counts(x[:, 1:3]))
    assert torch.equal(counts[..., 3], counts[..., 2])


# Training ids -----------------------------------------------------------------------------------------------------


def test_training_ids_of_the_plain_encodings_are_the_first_ones():
    for name in ("ape", "rope", "sinusoidal", "alibi", "t5", "nope"):
        ids = positions.get(name, width=16, heads=1).training_ids(5, np.random.default_rng(0), 3)
        assert ids.tolist() == [0, 1, 2, 3, 4]


def test_random_offsets_are_uniform_and_reach_every_row():
    ids = OffsetAPE(4, rows=12).training_ids(5, np.random.default_rng(0), 8000)
    assert ids.shape == (8000, 5)
    assert (np.diff(ids) == 1).all()
    counts = np.bincount(ids[:, 0], minlength=8)
    assert counts.shape == (8,)  # starts 0..7
    # chi-square with 7 degrees of freedom exceeds 29.9 with probability 1e-4
    assert ((counts - 1000) ** 2 / 1000).sum() < 29.9


def test_random_subsets_are_ordered_and_uniform():
    ids = RandomAPE(4, rows=5).training_ids(2, np.random.default_rng(0), 10000)
    assert (np.diff(ids) > 0).all()
    counts = np.bincount(5 * ids[:, 0] + ids[:, 1], minlength=25)
    pairs = [counts[5 * a + b] for a in range(5) for b in range(a + 1, 5)]
    assert sum(pairs) == 10000
    # chi-square with 9 degrees of freedom exceeds 33.7 with probability 1e-4
    assert sum((c - 1000) ** 2 / 1000 for c in pairs) < 33.7


def test_one_row_of_training_ids():
    for name in positions.ENCODINGS:
        ids = positions.get(name, width=16, heads=1).training_ids(6, np.random.default_rng(1))
        assert ids.shape == (6,)
        assert (np.diff(ids) > 0).all()


# Shifting every id ------------------------------------------------------------------------------------------------


def rotary_tolerance(q: torch.Tensor, k: torch.Tensor, ids: torch.Tensor, dtype: torch.dtype) -> float:
    """A bound on the change of a logit when all ids move, linear in the position: the angles m w_k, w_k <= 1, carry two
    roundings of double precision each; cosines, sines, products and sums are rounded in ``dtype``; all of it twice."""
    double, own = torch.finfo(torch.float64).eps / 2, torch.finfo(dtype).eps / 2
    size = q.norm(dim=-1).max().item() * k.norm(dim=-1).max().item()
    e = q.shape[-1]
    return 2 * size * (2 * double * 2 * ids.max().item() + (2 * 4 + e) * own)


@pytest.mark.parametrize("shift", [200, 4096, 2**17, 2**20, 2**30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotary_logits_keep_under_a_shift_of_ids(shift, dtype):
    torch.manual_seed(1)
    q, k = (torch.nn.functional.normalize(torch.randn(4, 1, 32, 64, dtype=dtype), dim=-1) for _ in range(2))
    rotary, ids = Rotary(64), torch.arange(32)

    def logits(ids):
        return rotary.rotate(q, ids) @ rotary.rotate(k, ids).transpose(-2, -1)

    change = (logits(ids) - logits(ids + shift)).abs().max().item()
    assert change <= rotary_tolerance(q, k, ids + shift, dtype)
    if shift == 2**30 and dtype == torch.float64:
        assert change > rotary_tolerance(q, k, ids, dtype)  # a constant tolerance would be wrong


def test_angles_are_computed_in_double_precision():
    """In single precision an angle near 2^20 is off by up to 2^-4 rad; in double precision that is nothing."""
    torch.manual_seed(1)
    q, k, ids = torch.randn(1, 1, 8, 64), torch.randn(1, 1, 8, 64), torch.arange(8) + 2**20
    rotary, frequencies = Rotary(64), Rotary(64).frequencies.float()

    def single(x, ids):
        turn = torch.polar(torch.ones(()), ids.float()[:, None] * frequencies)
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)

    def exact(x, ids):
        return Rotary(64).rotate(x.double(), ids)

    truth = exact(q, ids) @ exact(k, ids).transpose(-2, -1)
    off = (rotary.rotate(q, ids) @ rotary.rotate(k, ids).transpose(-2, -1) - truth).abs().max()
    naive = (single(q, ids) @ single(k, ids).transpose(-2, -1) - truth).abs().max()
    assert off < 1e-4 < naive


@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_relative_biases_keep_to_the_bit(name):
    encoding, ids = positions.get(name, width=96, heads=6), torch.arange(300)
    for shift in (1, 4096, 2**40):
        assert torch.equal(encoding.bias(ids, ids), encoding.bias(ids + shift, ids + shift))


def network_change(name: str, shift: int, dtype: torch.dtype) -> float:
    torch.manual_seed(2)
    model = Transformer(5, 3, 4, 64, name).to(dtype).eval()
    tokens, ids = torch.randint(5, (4, 24)), torch.arange(24)
    with torch.no_grad():
        return (model(tokens, ids) - model(tokens, ids + shift)).abs().max().item()


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("name", ["alibi", "t5", "nope"])
def test_networks_with_relative_biases_keep_to_the_bit(name, shift):
    assert network_change(name, shift, torch.float32) == 0


@pytest.mark.parametrize("shift", SHIFTS)
def test_rotary_networks_keep_up_to_rounding(shift):
    # 4 layers multiply the logit tolerance by what they amplify; 100 is generous, and the size of a real change is 1.
    for dtype in (torch.float32, torch.float64):
        own = torch.finfo(dtype).eps / 2
        size = 64  # heads of 16 dimensions, queries and keys of norm at most about 8
        assert network_change("rope", shift, dtype) <= 100 * size * (shift + 24) * own


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("name", ["ape", "sinusoidal", "ape-offset", "ape-random"])
def test_absolute_positions_do_not_keep(name, shift):
    assert network_change(name, shift, torch.float64) > 0.05


def test_ids_row_by_row_equal_ids_for_all():
    torch.manual_seed(3)
    tokens, ids = torch.randint(5, (3, 6)), torch.arange(6) + 4
    for name in positions.ENCODINGS:
        model = Transformer(5, 3, 2, 32, name)
        assert torch.allclose(model(tokens, ids), model(tokens, ids.repeat(3, 1)), atol=1e-5)
