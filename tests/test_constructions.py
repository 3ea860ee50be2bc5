"""The hand-set Transformers against parsers that know nothing of heights, attention or training."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from shiftbound import InputError, words
from shiftbound.constructions import (
    BoundedNet,
    CounterDyck1,
    ReluDyck,
    ScanDyck1,
    UniformDyck,
    hard_words,
    influence_bound,
    nest,
    rounded,
    strings,
)
from shiftbound.wiring import HandSet, Map


def cancel(word: list[int], k: int) -> bool:
    """Dyck-k by erasing adjacent pairs until nothing changes: neither a stack nor heights."""
    text = "".join(chr(ord("a") + t) if t < k else chr(ord("A") + t - k) for t in word)
    pair = re.compile("|".join(chr(ord("a") + c) + chr(ord("A") + c) for c in range(k)))
    while (shorter := pair.sub("", text)) != text:
        text = shorter
    return not text


def verdicts(batch: np.ndarray, k: int) -> np.ndarray:
    return np.array([words.is_dyck(word, k) for word in batch.tolist()])


def errors(network: HandSet, batch: np.ndarray, k: int) -> int:
    return int(((network.logits(batch) > 0) != verdicts(batch, k)).sum())


@pytest.mark.parametrize(("k", "n"), [(1, 9), (2, 5), (3, 4)])
def test_the_two_parsers_agree(k: int, n: int) -> None:
    for length in range(n + 1):
        batch = strings(k, length)
        assert len(batch) == (2 * k) ** length == len(set(map(tuple, batch.tolist())))
        assert verdicts(batch, k).tolist() == [cancel(word, k) for word in batch.tolist()]


@pytest.mark.slow
@pytest.mark.parametrize(("k", "n", "total"), [(1, 14, 32767), (2, 8, 87381), (3, 6, 55987)])
def test_every_short_string_is_decided(k: int, n: int, total: int) -> None:
    """Both constructions, all strings of at most n symbols: no error, and the margins of the theorems."""
    uniform, relu = UniformDyck(k), ReluDyck(k, n)
    seen = 0
    for length in range(n + 1):
        batch = strings(k, length)
        member = verdicts(batch, k)
        assert member.sum() == (0 if length % 2 else words.count(length, k))
        for network in (uniform, relu):
            logits = network.logits(batch)
            assert np.all(np.abs(logits[member] - 0.5) < 1e-9)
            assert np.all(logits[~member] <= -0.5 + 1e-9)
        seen += len(batch)
    assert seen == total


@pytest.mark.parametrize("k", [1, 2, 3])
def test_long_and_hard_words_are_decided_in_float64(k: int) -> None:
    rng = np.random.default_rng(k)
    uniform = UniformDyck(k)
    for n in (64, 512):
        batch = hard_words(rng, n, k)
        assert 6 <= verdicts(batch, k).sum() < len(batch)
        assert errors(uniform, batch, k) == 0
    assert errors(ReluDyck(k, 128), hard_words(rng, 128, k), k) == 0


@pytest.mark.slow
def test_words_of_2048_symbols_and_the_largest_relu_network() -> None:
    rng = np.random.default_rng(0)
    batch = hard_words(rng, 2048, 2, size=1)
    assert errors(UniformDyck(2), batch, 2) == 0
    assert errors(ReluDyck(2, 512), hard_words(rng, 512, 2, size=1), 2) == 0


def test_the_relu_network_is_built_for_a_length() -> None:
    rng = np.random.default_rng(1)
    network = ReluDyck(2, 32)
    assert errors(network, hard_words(rng, 32, 2), 2) == 0
    assert errors(network, hard_words(rng, 64, 2), 2) > 0


@pytest.mark.parametrize("k", [1, 2, 5])
def test_sizes(k: int) -> None:
    uniform, relu = UniformDyck(k), ReluDyck(k, 7)
    assert (uniform.width, uniform.depth) == (3 * k + 13, 4)
    assert (relu.width, relu.depth) == (3 * k + 12, 3)
    assert relu.layers[0].gate.weight.shape == (4 * 7 + 2, relu.width)
    assert all(layer.up is None for layer in relu.layers) and relu.clock is None
    heads = [layer.query.weight.shape[0] for layer in uniform.layers]
    assert heads == [1, 1, 4, 1]


def test_the_network_is_causal_and_its_states_are_what_they_are_called() -> None:
    network = UniformDyck(2)
    word = torch.from_numpy(words.sample(np.random.default_rng(0), 1, 40, 2))
    changed = word.clone()
    changed[0, 25:] = 0
    whole, cut = network.states(word)[-1], network.states(changed)[-1]
    assert torch.allclose(whole[:, :26], cut[:, :26], atol=1e-9) and not torch.allclose(whole, cut)
    heights = words.heights(word.numpy(), 2)
    assert np.allclose(network.read(word, "height").numpy(), heights)
    assert np.allclose(network.read(word, "square").numpy(), heights**2)
    assert np.allclose(ReluDyck(2, 40).read(word, "height").numpy(), heights)
    assert np.allclose(ReluDyck(2, 40).read(word, "position").numpy(), np.arange(41))
    attention = network.attention(word)
    assert torch.allclose(attention.sum(-1), torch.ones(1, 41, dtype=torch.float64))
    assert attention.triu(1).abs().max() == 0


def test_both_orders_of_summation_and_fine_rounding_agree() -> None:
    network = UniformDyck(2)
    batch = hard_words(np.random.default_rng(3), 32, 2)
    fused, stepwise = network.logits(batch), network.logits(batch, stepwise=True)
    assert np.allclose(fused, stepwise, atol=1e-9)
    assert np.allclose(fused, rounded(network, torch.from_numpy(batch), 45).numpy(), atol=1e-6)


@pytest.mark.parametrize("bits", [5, 8, 24])
def test_rounded_numbers_have_no_more_bits_than_they_may(bits: int) -> None:
    logits = rounded(UniformDyck(2), torch.from_numpy(hard_words(np.random.default_rng(4), 24, 2)), bits).numpy()
    mantissa = np.frexp(logits[np.isfinite(logits)])[0] * 2.0**bits
    assert np.array_equal(mantissa, np.round(mantissa))
    with pytest.raises(InputError, match="bits = 0 is not allowed"):
        rounded(UniformDyck(1), torch.zeros(1, 2, dtype=torch.int64), 0)


def test_formulas_are_read_off_the_tensors() -> None:
    network = UniformDyck(2)
    query = network.layers[2].query
    assert query.formulas()["0"] == "160 position + 160 product"
    query.weight[0, query.columns.index("position")] = -0.5
    assert query.formulas()["0"] == "-0.5 position + 160 product"
    x = torch.arange(3.0, dtype=torch.float64)
    assert Map({"y": {"a": 2, "c": -1}, "z": {}}, ["a", "b", "c"])(x).tolist() == [-2.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize(("build", "n", "depth"), [(ScanDyck1, 14, 4), (CounterDyck1, 12, 10)])
def test_scan_and_counter_decide_every_short_string(build, n: int, depth: int) -> None:
    network = build(n)
    assert network.depth == depth
    for length in range(n + 1):
        batch = strings(1, length)
        logits = network.logits(batch)
        assert ((logits > 0) == verdicts(batch, 1)).all() and np.abs(logits).min() >= 0.5 - 1e-9


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 33])
def test_scan_and_counter_at_their_own_length(n: int) -> None:
    rng = np.random.default_rng(n)
    batch = rng.integers(2, size=(60, n)) if n % 2 else np.concatenate([words.sample(rng, 30, n, 1)] * 2)
    batch[30:] = np.where(rng.random((30, n)) < 0.1, 1 - batch[30:], batch[30:])
    assert errors(ScanDyck1(n), batch, 1) == errors(CounterDyck1(n), batch, 1) == 0


def test_scan_reads_two_positions_a_layer() -> None:
    network = ScanDyck1(16)
    word = torch.from_numpy(words.sample(np.random.default_rng(0), 1, 16, 1))
    for layer in range(network.depth):
        read = network.attention(word, layer)[0] > 0
        assert (read.sum(-1) == 1).all() and read[16, 16 - 2**layer] and read[0, 0]


def test_counter_keeps_its_weights_and_states_bounded() -> None:
    rng = np.random.default_rng(0)
    for n in (16, 512):
        network = CounterDyck1(n)
        weights = [part.weight for part in network.modules() if isinstance(part, Map) and part.weight.numel()]
        assert max(weight.abs().max() for weight in weights) <= 2
        assert max(state.abs().max() for state in network.states(torch.from_numpy(hard_words(rng, n, 1)))) <= 1 + 1e-12


def test_bounded_networks_have_the_stated_norms() -> None:
    net = BoundedNet(3, 6, seed=0, score=0.7, value=1.3, heads=2, radius=2.0)
    assert torch.allclose(torch.linalg.matrix_norm(net.A, 2), torch.full((3, 2), 0.7, dtype=torch.float64))
    assert torch.allclose(torch.linalg.matrix_norm(net.V, 2).sum(1), torch.full((3,), 1.3, dtype=torch.float64))
    x = torch.randn(2, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    states = net(x)
    assert states.norm(dim=-1).max() <= 2 + 1e-12
    y = x.clone()
    y[:, 5:] *= -1
    assert torch.allclose(net(y)[:, :5], states[:, :5])
    full = BoundedNet(3, 6, seed=0, score=0.7, value=1.3, heads=2, radius=2.0, full=True)
    assert not torch.allclose(full(y)[:, :5], full(x)[:, :5])
    assert influence_bound(7, 2, net.p, net.q) < influence_bound(7, 3, net.p, net.q)


def test_hard_words_hold_members_and_their_neighbours() -> None:
    batch = hard_words(np.random.default_rng(0), 20, 2)
    member = verdicts(batch, 2)
    assert member[::6].all() and not member[1::6].any() and not member[2::6].any()
    assert words.is_dyck(nest(30, 7, 3), 3) and words.heights(nest(30, 7, 3), 3).max() == 8


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: UniformDyck(0), "k = 0 is not allowed; it must be a whole number of at least 1"),
        (lambda: UniformDyck(1, temperature=0.0), "temperature = 0.0 is not allowed"),
        (lambda: ReluDyck(1, 0), "N = 0 is not allowed"),
        (lambda: ScanDyck1(0), "n = 0 is not allowed"),
        (lambda: CounterDyck1(0), "n = 0 is not allowed"),
        (lambda: BoundedNet(0, 4, 0), "depth = 0 is not allowed"),
        (lambda: UniformDyck(1)(torch.tensor([[0, 2]])), r"token = \[2\] is not allowed"),
        (lambda: UniformDyck(1).read(torch.tensor([[0, 1]]), "hight"), "feature = 'hight' is not allowed"),
        (lambda: ScanDyck1(4).attention(torch.tensor([[0, 1]])), "layer = None is not allowed"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(build, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()
