"""Chapter 4, one test a theorem, by routes that the chapter does not take."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from shiftbound.positions import ALiBi, NoPE, Rotary, T5Bias
from shiftbound.transformer import Transformer, attention


@pytest.mark.parametrize(("head_dim", "base"), [(2, 1e4), (8, 10.0), (64, 5e5)])
def test_thm_rope(head_dim: int, base: float) -> None:
    """Complex numbers with 50 digits: a block's logit is Re(conj(q e^{i m theta}) k e^{i m' theta})."""
    torch.manual_seed(head_dim)
    rotary, ids = Rotary(head_dim, base), torch.tensor([0, 1, 17, 4000])
    q, k = torch.randn(2, 4, head_dim, dtype=torch.float64)
    turned = [rotary.rotate(z[None, None], ids)[0, 0] for z in (q, k)]
    with mp.workdps(50):
        theta = [mp.mpf(base) ** (-mp.mpf(2 * i) / head_dim) for i in range(head_dim // 2)]
        for i, j in itertools.product(range(4), repeat=2):
            pairs = [
                (mp.mpc(*q[i, 2 * t : 2 * t + 2].tolist()), mp.mpc(*k[j, 2 * t : 2 * t + 2].tolist()))
                for t in range(len(theta))
            ]
            apart = int(ids[j] - ids[i])
            exact = mp.fsum((mp.conj(a) * b * mp.expj(apart * t)).real for (a, b), t in zip(pairs, theta, strict=True))
            assert float(turned[0][i] @ turned[1][j]) == pytest.approx(float(exact), abs=1e-10)


def test_thm_rope_unique() -> None:
    """A basis of eigenvectors turns Q into rotations: rebuilding the powers from angles alone gives the same logits."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    values, vectors = np.linalg.eig(Q)
    angles = np.angle(values)
    for power in (2, 5, -3):
        rebuilt = (vectors * np.exp(1j * power * angles)) @ vectors.conj().T
        direct = np.linalg.matrix_power(Q if power > 0 else Q.T, abs(power))
        assert abs(rebuilt - direct).max() < 1e-9


@pytest.mark.parametrize("encoding", ["rope", "alibi", "t5", "nope", "ape", "sinusoidal"])
@pytest.mark.parametrize("window", [None, 5])
def test_thm_network_shift(encoding: str, window: int | None) -> None:
    torch.manual_seed(3)
    model = Transformer(6, 4, 2, 32, encoding=encoding, window=window).double().eval()
    words, ids = torch.randint(6, (3, 12)), torch.arange(12)
    padding = torch.zeros(3, 12, dtype=torch.bool)
    padding[:, :4] = True
    with torch.no_grad():
        for mask in (None, padding):
            moved = (model(words, ids, padding=mask) - model(words, ids + 37, padding=mask))[:, 4:].abs().max()
            if encoding in ("ape", "sinusoidal"):
                assert moved > 1e-3
            else:
                assert moved < (1e-10 if encoding == "rope" else 1e-300)
        if encoding == "rope":  # negative shifts too, and the loss of a batch with them
            assert (model(words, ids) - model(words, ids - 9)).abs().max() < 1e-10


def test_prop_nope_position() -> None:
    """Without positions two different places with the same token get different outputs, by the mask alone."""
    values = torch.tensor([5.0, 1.0, 1.0, 1.0], dtype=torch.float64)[None, None, :, None]
    said = attention(0 * values, 0 * values, values).flatten().tolist()
    assert said == pytest.approx([5, 3, 7 / 3, 2])


@pytest.mark.parametrize(("dtype", "u"), [(torch.float32, 2.0**-24), (torch.bfloat16, 2.0**-8)])
def test_thm_rope_float(dtype: torch.dtype, u: float) -> None:
    """One block against 40-digit arithmetic: the error itself keeps within a_m, not only the defect."""
    generator = torch.Generator().manual_seed(1)
    for theta, m in itertools.product((1.0, 0.3, 0.001), (1, 200, 300, 5001, 2**18 + 3)):
        q = torch.nn.functional.normalize(torch.randn(50, 2, generator=generator), dim=-1).to(dtype)
        angle = torch.tensor(m).to(dtype) * torch.tensor(theta).to(dtype)
        c, s = angle.cos(), angle.sin()
        turned = torch.stack((q[:, 0] * c - q[:, 1] * s, q[:, 0] * s + q[:, 1] * c), -1).double()
        rounded_theta = float(torch.tensor(theta).to(dtype))
        with mp.workdps(40):
            true = complex(mp.expj(m * mp.mpf(rounded_theta)))
        z = torch.view_as_complex(q.double()) * true
        error = (torch.view_as_complex(turned) - z).abs() / q.double().norm(dim=-1)
        kappa = 1.0 if float(torch.tensor(m).to(dtype)) == m else 2.01
        assert error.max() <= min(2.0, kappa * u * rounded_theta * m) + 6.1 * u


def test_the_rotary_of_this_book_does_not_drift_in_single_precision() -> None:
    torch.manual_seed(0)
    rotary, ids = Rotary(32), torch.arange(20)
    q, k = torch.nn.functional.normalize(torch.randn(2, 1, 1, 20, 32), dim=-1)

    def logits(shift: int) -> torch.Tensor:
        return rotary.rotate(q, ids + shift).double() @ rotary.rotate(k, ids + shift).double().transpose(-1, -2)

    for shift in (10, 10**3, 10**5, 10**7):
        assert (logits(shift) - logits(0)).abs().max() < 4 * 7 * 2.0**-24


def test_prop_right_then_wrong() -> None:
    """With fractions instead of floats: c marks among n tokens against the threshold 1/(n0 + 1/2)."""
    for n0 in range(1, 30):
        threshold = Fraction(2, 2 * n0 + 1)
        for n in range(1, 3 * n0):
            right = [(Fraction(c, n) > threshold) == (c > 0) for c in range(n + 1)]
            assert all(right) if n <= n0 else not right[1]


@pytest.mark.parametrize("bound", [0.0, 0.5, 3.0])
def test_thm_dilution(bound: float) -> None:
    """A numerical optimiser finds no larger weight than the extremal row."""
    for n in (2, 5, 40):
        attained = math.exp(bound) / (math.exp(bound) + (n - 1) * math.exp(-bound))
        assert (
            attained == pytest.approx(1 / (1 + (n - 1) * math.exp(-2 * bound)))
            and attained <= math.exp(2 * bound) / n + 1e-15
        )
        rng = np.random.default_rng(n)

        def weight(logits: np.ndarray) -> float:
            return -float(np.exp(logits[0] - np.logaddexp.reduce(logits)))

        found = minimize(weight, rng.uniform(-bound, bound, n), bounds=[(-bound, bound)] * n)
        assert -found.fun <= attained + 1e-9 and -found.fun >= attained - 1e-5


def test_thm_no_decay() -> None:
    """The Cesàro mean by exact geometric sums of complex exponentials, and the bound."""
    theta, c, phase = np.array([1.0, 0.4, 0.03]), np.array([1.0, -0.5, 2.0]), np.array([0.3, 2.0, 5.0])
    nodes = np.concatenate([theta, -theta])
    weights = np.concatenate([c * np.exp(1j * phase), c * np.exp(-1j * phase)]) / 2
    for n in (10, 1000, 50000):
        total = 0
        for (x, a), (y, b) in itertools.product(zip(nodes, weights, strict=True), repeat=2):
            z = np.exp(1j * (x + y))
            total += a * b * (n if abs(z - 1) < 1e-12 else (z**n - 1) / (z - 1))
        direct = (np.cos(np.multiply.outer(np.arange(n), theta) + phase) @ c) ** 2
        assert direct.mean() == pytest.approx(total.real / n, rel=1e-9)
        far = abs(np.outer(c, c))
        plus, minus = abs(np.sin((theta[:, None] + theta) / 2)), abs(np.sin((theta[:, None] - theta) / 2))
        bound = ((far / plus).sum() + (far[~np.eye(3, dtype=bool)] / minus[~np.eye(3, dtype=bool)]).sum()) / (2 * n)
        assert abs(direct.mean() - (c**2).sum() / 2) <= bound
    assert math.exp(ALiBi(8).bias(torch.tensor([3000]), torch.tensor([0])).max()) < 1e-5


def test_thm_kernel_determined() -> None:
    """Values of a kernel at 2K distances, solved with 60 digits, give back its coefficients; another value at the next
    distance is possible when one distance fewer was seen."""
    with mp.workdps(60):
        theta = [mp.mpf(1), mp.mpf("0.1"), mp.mpf("0.01")]

        def row(r: int) -> list:
            return [f(r * t) for f in (mp.cos, mp.sin) for t in theta]

        coefficients = mp.matrix([3, -1, 2, 0.5, 1, -4])
        square = mp.matrix([row(r) for r in range(5, 11)])
        solved = mp.lu_solve(square, square * coefficients)
        assert max(abs(solved[i] - coefficients[i]) for i in range(6)) < mp.mpf(10) ** -30
        target = square * coefficients
        target[5] += 7
        other = mp.lu_solve(square, target)
        gaps = [
            abs(sum(x * (o - c) for x, o, c in zip(row(r), other, coefficients, strict=True))) for r in range(5, 11)
        ]
        assert max(gaps[:5]) < mp.mpf(10) ** -30 and abs(gaps[5] - 7) < mp.mpf(10) ** -30


def test_prop_attention_not_lipschitz() -> None:
    """Automatic differentiation of the book's attention, with real rotations, at a growing token."""
    rotary, ids = Rotary(2), torch.arange(3)

    def last(x: torch.Tensor, t: float) -> torch.Tensor:
        tokens = torch.cat([torch.tensor([t, 0.0], dtype=torch.float64), x])
        plane = torch.stack((tokens, torch.zeros(3, dtype=torch.float64)), -1)[None, None]
        q = rotary.rotate(plane, ids)
        return attention(q, q, plane, scale=1.0)[0, 0, -1, 0]

    for t in (1.0, 10.0, 100.0):
        slope = torch.autograd.functional.jacobian(lambda x, t=t: last(x, t), torch.zeros(1, dtype=torch.float64))
        assert float(slope) == pytest.approx((1 + math.cos(2) * t * t * (1 - 1 / 3)) / 3, rel=1e-9)


def turn(r: float) -> torch.Tensor:
    return torch.tensor([[math.cos(r), -math.sin(r)], [math.sin(r), math.cos(r)]], dtype=torch.float64)


@pytest.mark.parametrize("bias", [NoPE(), ALiBi(1), T5Bias(1)])
def test_thm_attention_lipschitz(bias: object) -> None:
    """Finite moves, not derivatives: |f(x) - f(x')| <= (1 + 2 R^2 a) max |x - x'|, with any additive bias."""
    torch.manual_seed(2)
    rotary, radius = Rotary(2), 1.5
    for _ in range(40):
        n = int(torch.randint(2, 7, ()))
        ids = torch.arange(n)
        W_q, W_k, V = torch.randn(3, 2, 2, dtype=torch.float64)
        a = max(torch.linalg.matrix_norm(W_q.T @ turn(-r) @ W_k, 2).item() for r in range(n))
        x = torch.nn.functional.normalize(torch.randn(n, 2, dtype=torch.float64), dim=-1) * radius * torch.rand(n, 1)
        y = (
            torch.nn.functional.normalize(x + 0.3 * torch.randn(n, 2, dtype=torch.float64), dim=-1)
            * radius
            * torch.rand(n, 1)
        )
        added = bias.bias(ids, ids)

        def f(z: torch.Tensor, ids=ids, W_q=W_q, W_k=W_k, V=V, added=added) -> torch.Tensor:
            q, k = (rotary.rotate((z @ W.T)[None, None], ids) for W in (W_q, W_k))
            return attention(q, k, (z @ V.T)[None, None], scale=1.0, bias=added)[0, 0]

        moved = (f(x) - f(y)).norm(dim=-1).max()
        bound = torch.linalg.matrix_norm(V, 2) * (1 + 2 * radius**2 * a)
        assert moved <= bound * (x - y).norm(dim=-1).max()


def test_ex_rotation_between() -> None:
    """Finite differences on the book's attention: steeper than the naive constant 1, by R^2 sin(1)."""
    rotary, ids, R, h = Rotary(2), torch.arange(2), 2.0, 1e-5

    def later(x: float, y: float) -> float:
        tokens = torch.tensor([[y, 0.0], [x, 0.0]], dtype=torch.float64)
        q, k = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
        q[:, 0], k[:, 1] = 2 * tokens[:, 0], 2 * tokens[:, 0]
        q, k = (rotary.rotate(z[None, None], ids) for z in (q, k))
        return float(attention(q, k, tokens[None, None], scale=1.0)[0, 0, 1, 0])

    by_x, by_y = (later(h, R) - later(-h, R)) / (2 * h), (later(0, R + h) - later(0, R - h)) / (2 * h)
    assert by_x == pytest.approx(0.5 + R**2 * math.sin(1), abs=1e-6) and by_y == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("K", [0.3, 1.0, 1.7, 2.5, 5.0, 9.0, 30.0])
def test_thm_two_scalars(K: float) -> None:
    """A derivative-free optimiser against the formula."""

    def steepness(z: np.ndarray) -> float:
        x, y = np.clip(z, -1, 1)
        p = 1 / (1 + math.exp(-K * x * y))
        w = K * p * (1 - p)
        return -abs(1 - p + w * y * (y - x)) - abs(p + w * x * (y - x))

    tau = np.linspace(0, 1, 20001)
    h = (np.tanh(K * tau / 2) + K * (1 + tau) ** 2 / (4 * np.cosh(K * tau / 2) ** 2)).max()
    starts = itertools.product((-0.9, 0.0, 0.9), repeat=2)
    found = max(
        -minimize(steepness, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).fun
        for start in starts
    )
    assert found == pytest.approx(max(1 + K / 4, h), rel=1e-6)
    if K >= 9:
        assert h <= 1 + K / 4


@pytest.mark.parametrize("depth", [1, 2, 6])
def test_prop_depth_lipschitz(depth: int) -> None:
    """Constant sequences through an attention-only stack with distinct value matrices."""
    torch.manual_seed(depth)
    rotary, ids = Rotary(4), torch.arange(5)
    values = [torch.randn(4, 4, dtype=torch.float64) for _ in range(depth)]
    product = torch.eye(4, dtype=torch.float64)
    x = torch.linalg.svd(torch.linalg.multi_dot(values[::-1]) if depth > 1 else values[0]).Vh[0]
    state = x.expand(1, 1, 5, 4)
    for V in values:
        q = rotary.rotate(torch.randn(1, 1, 5, 4, dtype=torch.float64), ids)
        state = attention(q, q, state @ V.T)
        product = V @ product
    assert state[0, 0, -1].norm().item() == pytest.approx(torch.linalg.matrix_norm(product, 2).item(), rel=1e-9)
