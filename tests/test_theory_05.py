"""Chapter 5, statement by statement, by other routes than the chapter's own checks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from shiftbound import words
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


def leak(beta: float) -> float:
    return 1 / math.expm1(2 * beta) + 3 * math.exp(-6 * beta)


def verdicts(batch: np.ndarray, k: int) -> np.ndarray:
    return np.array([words.is_dyck(word, k) for word in batch.tolist()])


def test_lem_dyck_heights() -> None:
    """The last open one level up is what a stack pops, on random long words."""
    for word in words.sample(np.random.default_rng(0), 20, 60, 3):
        h, stack = words.heights(word, 3), []
        for i, token in enumerate(word.tolist(), 1):
            if token < 3:
                stack.append(i)
            else:
                assert stack.pop() == max(j for j in range(1, i) if h[j] == h[i] + 1 and word[j - 1] < 3)


def test_prp_dyck_circuits() -> None:
    for x in itertools.product([0, 1], repeat=9):
        word = [0] * 9 + [1 - bit for bit in x] + [1] * 9
        assert not words.is_dyck(word, 1)  # nine bits are never half ones
        padded = [0] * 10 + [1 - bit for bit in x] + [0] + [1] * 10
        assert words.is_dyck(padded, 1) == (sum(x) == 4)


@pytest.mark.parametrize("beta", [1.0, 1.5, 3.0, 40.0])
def test_thm_dyck_uniform(beta: float) -> None:
    """The margin at several temperatures, attained up to 2L against 2L/(1+L)."""
    network = UniformDyck(2, temperature=beta)
    for batch in (*(strings(2, n) for n in range(7)), hard_words(np.random.default_rng(0), 128, 2)):
        logits, member = network.logits(batch), verdicts(batch, 2)
        assert np.abs(logits[member] - 0.5).max(initial=0) < 1e-9
        assert logits[~member].max(initial=-1) <= -0.5 + 2 * leak(beta) + 1e-9
    worst = network.logits(np.array([[*([1, 3] * 63), 0, 3]]))[0]
    ratio = 1 / math.expm1(2 * beta)
    assert worst == pytest.approx(-0.5 + 2 * ratio / (1 + ratio), abs=1e-6)


def test_thm_dyck_uniform_needs_its_temperature() -> None:
    """[][]...(] is accepted just below ln 2 and rejected just above."""
    lure = np.array([[*([1, 3] * 100), 0, 3]])
    assert UniformDyck(2, temperature=math.log(2) - 0.01).logits(lure)[0] > 0
    assert UniformDyck(2, temperature=math.log(2) + 0.01).logits(lure)[0] < 0


def test_prp_dyck_stack() -> None:
    word = words.sample(np.random.default_rng(1), 1, 400, 2)[0]
    look = UniformDyck(2, temperature=1.0).attention(torch.from_numpy(word[None]))[0].numpy()
    stack = []
    for i, token in enumerate(word.tolist(), 1):
        if token < 2:
            stack.append(i)
        else:
            assert 1 / look[i, stack.pop()] - 1 <= leak(1.0)


@pytest.mark.slow
def test_prp_dyck_bits() -> None:
    """At n = 256 the proved 32 bits suffice for hard words, 12 do not."""
    batch = np.concatenate([hard_words(np.random.default_rng(0), 256, 2, size=0)[::3], nest(256, 110, 2)[None]])
    bits = math.ceil(3 * math.log2(257)) + 7
    assert bits == 32 and 257**3 * 2.0**-bits <= 2.0**-7
    logits = rounded(UniformDyck(2), torch.from_numpy(batch), bits).numpy()
    assert ((logits > 0) == verdicts(batch, 2)).all() and np.abs(logits).min() >= 0.45
    coarse = rounded(UniformDyck(2), torch.from_numpy(batch[-1:]), 12).numpy()
    assert coarse[0] < 0


def test_float32_breaks_by_512_symbols_and_float64_does_not() -> None:
    single, double = UniformDyck(2, dtype=torch.float32), UniformDyck(2)
    for n, broken in ((128, False), (192, False), (512, True)):
        batch = np.array([nest(n, depth, 2) for depth in range(n // 5, n // 2, n // 40)])
        assert (double.logits(batch) > 0).all()
        assert (single.logits(batch, stepwise=True) < 0).any() == broken


@pytest.mark.parametrize("beta", [1.0, 2.0, 40.0])
def test_thm_dyck_relu(beta: float) -> None:
    """The margins of the unthresholded network; at beta = 2 and N = 64 a member is rejected."""
    network = ReluDyck(2, 64, temperature=beta)
    members = np.array([nest(64, depth, 2) for depth in (0, 1, 8, 16)])
    batch = np.concatenate([members, hard_words(np.random.default_rng(0), 64, 2)])
    logits, member = network.logits(batch), verdicts(batch, 2)
    assert logits[member].min() >= 0.5 - 65 / 2 * leak(beta) - 1e-9
    assert logits[~member].max() <= -0.5 + leak(beta) + 1e-9
    assert (logits[1] < 0) == (beta <= 2.0)
    if beta == 2.0:
        assert logits[1] == pytest.approx(-0.0396, abs=1e-4)


def test_thm_light_cone() -> None:
    """Flips show what the scan's answer depends on: 2^D symbols; and no even length above 2^D is decided."""
    for depth in (1, 2, 3):
        network = ScanDyck1(16, depth=depth)
        word = torch.zeros(1, 16, dtype=torch.int64)
        base = network.states(word)[-1][0, -1]
        seen = []
        for t in range(16):
            flipped = word.clone()
            flipped[0, t] = 1
            seen.append(not torch.equal(network.states(flipped)[-1][0, -1], base))
        assert seen == [False] * (16 - 2**depth) + [True] * 2**depth
        n = 2**depth + 2
        batch = strings(1, n)
        assert ((network.logits(batch) > 0) != verdicts(batch, 1)).any()


def test_prp_dyck_windows() -> None:
    """All placements of windows of 3, two and three layers: the most positions seen is (2D - 1)(w - 1) + 1."""
    w, most = 3, {1: 0, 2: 0, 3: 0}
    for starts in itertools.product(range(w), repeat=w):  # where the windows of the last layer's positions begin
        top = range(-1, w - 1)
        seen = {j for i, s in zip(top, starts, strict=True) for j in range(i - s, i - s + w)}
        most[2] = max(most[2], len(seen))
        low, high = min(seen), max(seen)
        assert len(seen) == high - low + 1
        most[3] = max(most[3], high - low + 1 + 2 * (w - 1))
        most[1] = w
    assert most == {depth: (2 * depth - 1) * (w - 1) + 1 for depth in (1, 2, 3)}


@pytest.mark.parametrize("full", [True, False])
def test_thm_bounded_influence(full: bool) -> None:
    """A hill climb over inputs and tokens never exceeds the bound, and gets near it for one layer."""
    generator = torch.Generator().manual_seed(0)
    n, best = 8, 0.0
    for depth in (1, 2):
        net = BoundedNet(depth, 3, seed=depth, score=0.3, value=0.8, full=full)
        limit = influence_bound(n, depth, net.p, net.q, full=full)
        x = torch.randn(n, 3, dtype=torch.float64, generator=generator)
        best = 0.0
        for _ in range(400):
            y = x + 0.3 * torch.randn(n, 3, dtype=torch.float64, generator=generator)
            y = y / y.norm(dim=-1, keepdim=True).clamp(min=1)
            z = y.clone()
            z[0] = -y[0]
            moved = (net(y[None]) - net(z[None]))[0, -1].norm().item()
            assert moved <= limit
            if moved > best:
                best, x = moved, y
        assert best > 0.25 * limit / (1 if depth == 1 else 4)


def test_thm_bounded_influence_is_attained_without_scores() -> None:
    for n, depth, v in itertools.product((3, 50), (1, 3, 6), (0.2, 1.5)):
        net = BoundedNet(depth, 2, 0, score=0.0, value=v, radius=1e9, full=True)
        net.V.copy_(v * torch.eye(2, dtype=torch.float64).expand_as(net.V))
        x = torch.zeros(1, n, 2, dtype=torch.float64)
        x[0, 1, 0] = 1
        moved = (net(x) - net(-x))[0, 0].norm().item()
        assert moved == pytest.approx(influence_bound(n, depth, 1.0, v, full=True), rel=1e-9)
        assert moved == pytest.approx(2 * ((1 + v) ** depth - 1) / n, rel=1e-9)


def test_cor_bounded_depth() -> None:
    """The counting network has margin 1/2 and logarithmic depth; no network of fixed norms can keep it with fewer."""
    rng = np.random.default_rng(0)
    for n in (2, 30, 512):
        network = CounterDyck1(n)
        assert network.depth == 2 + 2 * math.ceil(math.log2(n + 1))
        batch = hard_words(rng, n, 1) if n >= 16 else strings(1, n)
        assert np.abs(network.logits(batch)).min() >= 0.5 - 1e-9
        assert ((network.logits(batch) > 0) == verdicts(batch, 1)).all()
    for p, q, ratio in itertools.product((0.2, 1.0, 2.0), (0.5, 3.0), (4.0, 1e3, 1e6)):  # ratio = n gamma / (kappa R)
        depths = [depth for depth in range(200) if (p + q) ** depth - p**depth >= ratio]
        if p + q <= 1:
            assert not depths
        else:
            assert depths[0] >= math.log(ratio) / math.log(p + q)


def test_prp_dfs_dyck() -> None:
    """Random trees and words, there and back; a search that stops early ends in the air."""
    rng = np.random.default_rng(0)
    for word in words.sample(rng, 30, 40, 3):
        assert words.tree_to_word(words.word_to_tree(word, 3), 3).tolist() == word.tolist()
    for queens, (whole, first) in {6: (304, 56), 4: (32, 12)}.items():
        trace, prefix = words.queens_trace(queens), words.queens_trace(queens, first=True)
        assert (len(trace), len(prefix)) == (whole, first)
        assert UniformDyck(queens).logits(trace[None])[0] > 0 > UniformDyck(queens).logits(prefix[None])[0]
        assert words.heights(prefix, queens)[-1] == queens


def test_the_legal_next_brackets_can_be_read_off() -> None:
    """Exercise 1: with one weight set to zero, layer 3 points at the top of the stack everywhere."""
    network = UniformDyck(3)
    query = network.layers[2].query
    query.weight[0, query.columns.index("position")] = 0
    batch = words.sample(np.random.default_rng(2), 10, 80, 3)
    tokens = torch.from_numpy(batch)
    gate = torch.relu(1 - network.read(tokens, "height"))
    told = torch.stack([network.read(tokens, f"match {c}") - 0.5 - gate > 0 for c in range(3)], -1).numpy()
    for word, row in zip(batch.tolist(), told, strict=True):
        stack: list[int] = []
        assert not row[0].any()
        for i, token in enumerate(word, 1):
            stack.append(token) if token < 3 else stack.pop()
            assert row[i].tolist() == [c in stack[-1:] for c in range(3)]
