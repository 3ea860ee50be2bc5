"""Chapter 3, statement by statement, by other routes than the chapter's own checks: real softmax, real encodings."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from test_mutations import code_cells

from shiftbound import InputError
from shiftbound.positions import LearnedAPE, OffsetAPE, SinusoidalAPE
from shiftbound.transformer import attention


def full_rows(x, p, A):
    """Softmax rows of full attention on contents x at positions p."""
    logits = (x + p) @ A @ (x + p).T
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def causal_rows(x, p, A):
    """The same through the book's own attention, causal."""
    q, k = torch.tensor((x + p) @ A)[None, None], torch.tensor(x + p)[None, None]
    return attention(q, k, k, scale=1.0, return_weights=True)[1][0, 0].numpy()


def largest_change(rows, x, p, A, shifts=6):
    n = len(x)
    return max(np.abs(rows(x, p[s : s + n], A) - rows(x, p[:n], A)).max() for s in range(1, shifts))


@pytest.mark.parametrize("rows", [full_rows, causal_rows])
def test_thm_ape_characterisation(rows) -> None:
    """(i) and (ii) suffice; breaking either changes the weights of some word."""
    rng = np.random.default_rng(0)
    d, n, m = 5, 4, 12
    u, v, w = np.linalg.qr(rng.normal(size=(d, d)))[0].T[:3]
    x = rng.normal(size=(n, d))
    steps = np.arange(m)[:, None]
    good = np.outer(u, v)  # A p = u (v.p) is affine for p along v, and A^T p = v (u.p) is constant there
    assert largest_change(rows, x, w + steps * v, good) < 1e-12
    assert largest_change(rows, x, w + steps**2 * v, good) > 1e-3  # (ii) broken
    assert largest_change(rows, x, w + steps * u, good) > 1e-3  # (i) broken


def test_thm_ape_characterisation_needs_an_affine_span() -> None:
    """The chapter's exercise: unit vectors as embeddings leave room for a head that violates (i)."""
    rng = np.random.default_rng(1)
    d, m = 4, 12
    w = rng.normal(size=d)
    w -= w.mean()
    p, A, x = rng.normal(size=(m, 1)) * w, np.outer(w, np.ones(d)), np.eye(d)[[0, 2, 1, 1]]
    assert np.ptp(p @ A, axis=0).max() > 1
    assert largest_change(full_rows, x, p, A) < 1e-12
    assert largest_change(full_rows, 1.7 * x * [[1], [2], [1], [3]], p, A) > 1e-3


def test_ex_causal_exception() -> None:
    rng = np.random.default_rng(0)
    A, p, x = np.outer([1.0, 0], [0, 1.0]), np.zeros((10, 2)), rng.normal(size=(4, 2))
    p[0, 0] = 5
    assert largest_change(causal_rows, x, p, A) == 0
    assert largest_change(full_rows, x, p, A) > 0.1


def test_cor_ape_blind() -> None:
    """A code of period 12 in a plane of R^4: every head that satisfies (i) and (ii) has A p_m constant."""
    turn = np.array([[math.cos(math.pi / 6), -math.sin(math.pi / 6)], [math.sin(math.pi / 6), math.cos(math.pi / 6)]])
    plane = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 2)))[0]
    p = np.array([plane @ np.linalg.matrix_power(turn, m) @ [1.0, 0.5] for m in range(40)])
    first, second, one = np.diff(p, axis=0), np.diff(p, 2, axis=0), np.eye(4)
    rows = [np.outer(w, e).ravel() for w in first for e in one] + [np.outer(e, w).ravel() for w in second for e in one]
    singular, heads = np.linalg.svd(np.array(rows))[1:]
    heads = heads[singular < 1e-9].reshape(-1, 4, 4)
    assert len(heads) == 4  # A acts between two complements of the plane
    assert max(np.abs((p - p[0]) @ A.T).max() for A in heads) < 1e-9


def test_thm_ape_size() -> None:
    """Gaussian contents, Monte Carlo."""
    rng = np.random.default_rng(0)
    d, draws, shift = 6, 200_000, 3
    A, p = rng.normal(size=(d, d)), rng.normal(size=(8, d))
    x = rng.normal(size=(3, draws, d))
    logits = [[np.einsum("na,ab,nb->n", x[0] + p[s], A, x[j] + p[s + j]) for j in (1, 2)] for s in (0, shift)]
    defect = (logits[1][0] - logits[1][1]) - (logits[0][0] - logits[0][1])
    delta = p[shift : shift + 3] - p[:3]
    free = p[shift] @ A @ (p[shift + 1] - p[shift + 2]) - p[0] @ A @ (p[1] - p[2])
    exact = ((A @ (delta[1] - delta[2])) ** 2).sum() + 2 * ((A.T @ delta[0]) ** 2).sum() + free**2
    assert abs((defect**2).mean() - exact) < 5 * (defect**2).std() / math.sqrt(draws)


def test_thm_sinusoidal_cesaro() -> None:
    """On the real table with four frequencies, where 2^16 shifts average to within a few per cent."""
    rng = np.random.default_rng(0)
    width, shifts = 8, 2**16
    ids = torch.arange(shifts + 8)
    p = SinusoidalAPE(width).embed(torch.zeros(1, len(ids), width, dtype=torch.float64), ids)[0].numpy()
    for _ in range(3):
        row, j, k = rng.normal(size=width), *rng.choice(8, 2, replace=False)
        f = (p[j : j + shifts] - p[k : k + shifts]) @ row
        omega = 10000.0 ** (-2 * np.arange(width // 2) / width)
        r = np.hypot(row[::2], row[1::2])
        limit = f[0] ** 2 + (r**2 * (1 - np.cos(omega * (j - k)))).sum()
        assert ((f - f[0]) ** 2).mean() == pytest.approx(limit, rel=0.05)


def test_lem_logit_to_weight() -> None:
    a, b = np.random.default_rng(0).uniform(-3, 3, (2, 10_000))
    change = np.abs(1 / (1 + np.exp(-a)) - 1 / (1 + np.exp(-b)))
    assert np.allclose(change, np.abs(np.sinh((a - b) / 2)) / (2 * np.cosh(a / 2) * np.cosh(b / 2)))
    assert (change >= np.abs(a - b) / (4 * math.cosh(1.5) ** 2) - 1e-15).all()


@pytest.mark.parametrize(
    ("optimiser", "factor"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), 1.0),
        (lambda p: torch.optim.Adam(p, lr=0.01), 1.0),
        (lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5), (1 - 0.005) ** 40),
        (lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.5), (1 - 0.005) ** 40),
    ],
)
def test_prop_untrained_rows(optimiser, factor: float) -> None:
    torch.manual_seed(0)
    encoding = LearnedAPE(8, rows=20)
    start, step = encoding.table.detach().clone(), optimiser(encoding.parameters())
    for _ in range(40):
        step.zero_grad()
        (encoding.embed(torch.zeros(1, 12, 8), torch.arange(12)) - 1).square().sum().backward()
        step.step()
    assert torch.allclose(encoding.table[12:], start[12:] * factor, rtol=40 * 2.0**-22, atol=0)
    assert (factor != 1) or torch.equal(encoding.table[12:], start[12:])
    assert not torch.allclose(encoding.table[:12], start[:12] * factor)


def test_random_offsets_train_every_row() -> None:
    encoding, rng = OffsetAPE(4, rows=24), np.random.default_rng(0)
    assert {int(i) for _ in range(400) for i in encoding.training_ids(8, rng)} == set(range(24))


@pytest.mark.parametrize("tau", [0.3, 1.0, 2.0])
def test_thm_untrained_tv_floor(tau: float) -> None:
    """Half E|Y - 1| by quadrature, and no constant c in place of 1 is better on average (Jensen)."""

    def half(c: float) -> float:
        z = (math.log(c) + tau**2 / 2) / tau if c > 0 else -math.inf
        above = norm.cdf(tau - z) - c * norm.sf(z)  # E(Y - c)^+
        return (2 * above - 1 + c) / 2

    numeric = quad(
        lambda g: abs(math.exp(tau * g - tau**2 / 2) - 1) * norm.pdf(g), -12, 12, points=[tau / 2], limit=200
    )[0]
    assert numeric / 2 == pytest.approx(2 * norm.cdf(tau / 2) - 1, abs=1e-9)
    assert half(1.0) == pytest.approx(numeric / 2, abs=1e-9)
    assert all((half(1 - h) + half(1 + h)) / 2 >= half(1.0) for h in (0.1, 0.5, 0.9))


def test_thm_untrained_tv_on_a_learned_table() -> None:
    """Queries on real tables: above the guaranteed bound against every fixed row, at the floor against beta."""
    rng, width, keys, sigma = np.random.default_rng(0), 32, 512, 0.3
    torch.manual_seed(0)
    contents, q = rng.normal(size=(keys, width)) * 0.1, rng.normal(size=width)
    tau = sigma * np.linalg.norm(q)
    q, tau = q / tau, 1.0
    beta = np.exp(contents @ q) / np.exp(contents @ q).sum()
    changes = {"beta": [], "fixed": []}
    fixed = rng.dirichlet(np.full(keys, 0.5))
    for _ in range(60):
        rows = LearnedAPE(width, rows=keys, scale=sigma).table.detach().double().numpy()
        moved = beta * np.exp(rows @ q)
        moved /= moved.sum()
        changes["beta"].append(np.abs(moved - beta).sum() / 2)
        changes["fixed"].append(np.abs(moved - fixed).sum() / 2)
    floor, slack = 2 * norm.cdf(tau / 2) - 1, math.sqrt(math.expm1(tau**2) * (beta**2).sum()) / 2
    error = {name: 5 * np.std(tv) / math.sqrt(60) for name, tv in changes.items()}
    assert abs(np.mean(changes["beta"]) - floor) <= slack + error["beta"]
    assert np.mean(changes["fixed"]) >= floor - slack - error["fixed"]


@pytest.mark.parametrize(("ratio", "expected"), [(3, {2: 0.017, 16: 0.134, 128: 0.351, 1024: 0.591})])
def test_thm_selection_and_cor_readout(ratio: float, expected: dict[int, float]) -> None:
    """Quadrature by another rule, and hard attention on a real learned table."""
    torch.manual_seed(0)
    rng, sigma, width = np.random.default_rng(0), 0.3, 16
    for n, value in expected.items():
        error = quad(lambda z, n=n: norm.pdf(z) * (1 - norm.cdf(ratio + z) ** (n - 1)), -10, 10, limit=200)[0]
        assert error == pytest.approx(value, abs=1e-3)
    q = rng.normal(size=width)
    tau, n, draws = sigma * np.linalg.norm(q), 16, 4000
    rows = LearnedAPE(width, rows=n * draws, scale=sigma).table.detach().double().numpy().reshape(draws, n, width)
    winners = (rows @ q + np.where(np.arange(n) == 0, ratio * tau, 0)).argmax(1)
    carried = rng.integers(0, 3, (draws, n))
    wrong_key, wrong_value = winners != 0, carried[np.arange(draws), winners] != carried[:, 0]
    for event, mean in ((wrong_key, 0.134), (wrong_value, 0.134 * 2 / 3)):
        assert abs(event.mean() - mean) <= 5 * math.sqrt(mean / draws) + 1e-3


def test_prop_margin() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        A, q, x, y = rng.normal(size=(6, 6)), *rng.normal(size=(3, 6))
        gamma, tau = q @ A @ (x - y), 0.7 * np.linalg.norm(A.T @ q)
        assert gamma / tau <= np.linalg.norm(x - y) / 0.7 + 1e-12


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_prop_averaging(tau: float) -> None:
    """Read-outs with real values: the bound at every n, and the limit law at a large one."""
    rng, draws = np.random.default_rng(0), 2000
    for n in (2, 8, 512):
        weight = np.exp(tau * rng.normal(size=(draws, n)))
        weight /= weight.sum(1, keepdims=True)
        squares = ((weight - 1 / n) * rng.normal(3, 1, (draws, n))).sum(1) ** 2
        error = 5 * squares.std() / math.sqrt(draws)
        assert squares.mean() - error <= math.exp(8 * tau**2) / n
        if n == 512:
            assert abs(n * squares.mean() - math.expm1(tau**2)) <= n * error + 0.05


def test_prop_lipschitz() -> None:
    """One flip changes the share of opens by 1/n; a function of the offset has no finite quotient constant."""
    for n in (2, 5, 9):
        words = np.array(list(itertools.product([0, 1], repeat=n)))
        flips = np.abs(words[:, None] - words).sum(-1)
        shares = np.abs(words.mean(1)[:, None] - words.mean(1))
        assert (shares[flips > 0] / flips[flips > 0]).max() == pytest.approx(1 / n)
    p = SinusoidalAPE(16).embed(torch.zeros(1, 40, 16, dtype=torch.float64), torch.arange(40))[0].numpy()
    rng = np.random.default_rng(0)
    assert largest_change(causal_rows, rng.normal(size=(5, 16)), p, rng.normal(size=(16, 16)) / 4) > 1e-2


def test_thm_escape_through_softmax() -> None:
    """Five tokens in oblique general position beside a sinusoidal code: weights stay, and do see contents and order."""
    rng, width, shift, n = np.random.default_rng(0), 20, 4321, 7
    basis = np.eye(width) + 0.3 * rng.normal(size=(width, width)) / math.sqrt(width)
    inverse = np.linalg.inv(basis)
    blocks = [rng.normal(size=(4, 4))]
    for _ in range((width - 4) // 2):
        phi, c = rng.uniform(-3, 3), rng.uniform(0.5, 1)
        blocks.append(c * np.array([[math.cos(phi), -math.sin(phi)], [math.sin(phi), math.cos(phi)]]))
    inner, at = np.zeros((width, width)), 0
    for block in blocks:
        inner[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    A = inverse.T @ inner @ inverse
    vocabulary = rng.normal(size=(5, 4)) @ basis[:, :4].T
    x = vocabulary[rng.integers(0, 5, n)]

    def code(first):
        ids = torch.arange(first, first + n)
        return (
            SinusoidalAPE(width - 4).embed(torch.zeros(1, n, width - 4, dtype=torch.float64), ids)[0].numpy()
            @ basis[:, 4:].T
        )

    here = causal_rows(x, code(0), A)
    assert np.abs(causal_rows(x, code(shift), A) - here).max() < 1e-9
    assert np.abs(causal_rows(x[::-1].copy(), code(0), A) - here).max() > 1e-2
    assert np.abs(causal_rows(x, code(0), rng.normal(size=A.shape)) - here).max() > 1e-2


def test_prop_standard_table() -> None:
    """Full rank on paper (width 8, many positions), and a numerical rank well below the width for the real table."""
    narrow, wide = (
        SinusoidalAPE(d).embed(torch.zeros(1, 4000, d, dtype=torch.float64), torch.arange(4000))[0].numpy()
        for d in (8, 128)
    )
    assert np.linalg.matrix_rank(np.diff(narrow, axis=0)) == 8
    singular = np.linalg.svd(np.diff(wide, axis=0), compute_uv=False)
    assert 60 < (singular > 1e-12 * singular[0]).sum() < 100


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("n", 1, "always invariant"),
        ("tau", -1.0, "standard deviation"),
        ("sigma", 0.0, "positive standard deviation"),
        ("width", 24, "multiple of 16"),
        ("values", 1, "at least 2"),
        ("keys", [64, 16], "increasing"),
        ("weight_decay", 200.0, "changes sign"),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(name: str, value: object, words: str) -> None:
    parameters, setup = code_cells("03_absolute_positions")[:2]
    namespace: dict[str, object] = {}
    exec(parameters.source, namespace)
    namespace[name] = value
    with pytest.raises(InputError, match=f"{name} = .*{words}"):
        exec(setup.source, namespace)
