"""The theorems of chapter 7, by routes other than the chapter's own."""

import math
from itertools import pairwise

import numpy as np
import torch
from scipy import optimize, special

from shiftbound.constructions import BoundedNet, CounterDyck1, influence_bound
from shiftbound.transformer import Transformer


def diameter(X: np.ndarray) -> float:
    return max(np.linalg.norm(a - b) for a in X for b in X)


def attend(X: np.ndarray, A: np.ndarray, V: np.ndarray) -> np.ndarray:
    return special.softmax(X @ A @ X.T, axis=1) @ X @ V


def test_softmax_and_oscillation() -> None:
    """An optimiser that looks for the worst logits and perturbation finds the bound and not more."""
    rng = np.random.default_rng(0)
    for omega in (0.5, 2.0, 6.0):

        def negative(v: np.ndarray, omega: float = omega) -> float:
            logits, z = np.split(v, 2)
            z = omega * special.expit(z)  # oscillation below omega
            return -abs(special.softmax(logits + z) - special.softmax(logits)).sum() / 2

        best = max(
            -optimize.minimize(negative, rng.normal(size=8), method="Nelder-Mead", options={"maxiter": 2000}).fun
            for _ in range(4)
        )
        assert 0.9 * math.tanh(omega / 4) < best <= math.tanh(omega / 4) + 1e-12


def test_one_layer_of_pure_attention() -> None:
    """Hill climbing over tokens never crosses the bound, and gets close to it."""
    rng = np.random.default_rng(1)
    reached = 0.0
    for _ in range(6):
        A = rng.normal(size=(2, 2))
        A = (A + A.T) / 2

        def ratio(x: np.ndarray, A: np.ndarray = A) -> float:
            X = x.reshape(3, 2)
            size = diameter(X)
            bound = size * math.tanh(np.linalg.norm(A, 2) * size**2 / 4)
            return -diameter(attend(X, A, np.eye(2))) / bound if size > 1e-3 else 0.0

        found = -optimize.minimize(ratio, rng.normal(size=6), method="Nelder-Mead", options={"maxiter": 1500}).fun
        assert found <= 1 + 1e-9
        reached = max(reached, found)
    assert reached > 0.95


def test_the_pair_attains_the_bound() -> None:
    for s in (0.01, 0.3, 2.0):
        x = math.sqrt(s)
        assert abs(diameter(attend(np.array([[x], [-x]]), np.eye(1), np.eye(1))) - 2 * x * math.tanh(s)) < 1e-12
    # A = e1 e2^T: along the top singular direction the outputs coincide.
    A, X = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0, 1.0], [0.0, -1.0]])
    assert diameter(attend(X, A, np.eye(2))) < 1e-15


def test_doubly_exponential_collapse() -> None:
    """The recursion of the pair in logarithms: log(sqrt(c) size) at least triples, and the ratio tends to 3."""
    u, chain = math.log(0.45), []
    for _ in range(6):
        chain.append(u)
        square = math.exp(2 * u)  # |A| size^2 / 4 with c = 1/4
        u = u + (math.log(math.tanh(square)) if square > 1e-150 else 2 * u)
    ratios = [b / a for a, b in pairwise(chain)]
    assert all(r >= 3 for r in ratios) and abs(ratios[-1] - 3) < 1e-6


def test_causal_masks_are_outside_the_theorem() -> None:
    weights = np.tril(np.ones((2, 2))) / np.array([[1], [2]])
    assert diameter(weights @ np.array([[0.0], [1.0]])) == 0.5


def test_with_a_skip_connection() -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        X, A, V = rng.normal(size=(5, 3)), rng.normal(size=(3, 3)) / 3, rng.normal(size=(3, 3)) / 3
        size = diameter(X)
        tau = np.linalg.norm(V, 2) * math.tanh(np.linalg.norm(A, 2) * size**2 / 4)
        assert (1 - tau) * size - 1e-9 <= diameter(X + attend(X, A, V)) <= (1 + tau) * size + 1e-9
    # Once tokens are close, many layers leave their diameter alone, whatever V does to the mean.
    X = 1e-4 * rng.normal(size=(5, 3)) + 1
    close = diameter(X)
    for _ in range(10):
        X = X + attend(X, np.eye(3) / 100, -np.eye(3) / 10)
    assert abs(diameter(X) / close - 1) < 1e-6


def test_a_skip_connection_that_does_not_help() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(6, 4)) + 1
    E, M = np.linalg.norm(X - X.mean(0)), math.sqrt(6) * np.linalg.norm(X.mean(0))
    for l in range(20):
        r = np.linalg.norm(X - X.mean(0)) / np.linalg.norm(X)
        assert abs(r - E / math.hypot(E, 2**l * M)) < 1e-12
        X = X + X.mean(0)


def test_length_collapse() -> None:
    """A network written here from the layer's definition (two heads, a token-wise Lipschitz map) keeps to the bound."""
    rng = np.random.default_rng(4)
    D, d, a, v, R = 3, 5, 0.4, 0.8, 1.0
    norm = lambda s: (M := rng.normal(size=(d, d))) * (s / np.linalg.norm(M, 2))  # noqa: E731
    layers = [[(norm(a), norm(v / 2)) for _ in range(2)] for _ in range(D)]

    def run(X: np.ndarray, causal: bool) -> np.ndarray:
        for heads in layers:
            c = 0
            for A, V in heads:
                logits = X @ A @ X.T
                if causal:
                    logits = np.where(np.tri(len(X), dtype=bool), logits, -np.inf)
                c = c + special.softmax(logits, axis=1) @ X @ V
            X = X + np.tanh(c)  # 1-Lipschitz in each argument
            X = X * np.minimum(1, R / np.linalg.norm(X, axis=1, keepdims=True))
        return X

    B = a * R**2
    p, q = 1 + 2 * B * v, v * (1 + 2 * B) * math.exp(2 * B)
    moved = {}
    for n in (16, 64, 256):
        X = rng.normal(size=(n, d))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        Y = np.concatenate([-X[:1], X[1:]])
        for causal in (False, True):
            gap = np.linalg.norm(run(X, causal) - run(Y, causal), axis=1)
            moved[n, causal] = gap[-1] if causal else gap[1:].max()
            assert moved[n, causal] <= influence_bound(n, D, p, q, R, full=not causal)
            assert gap[0] > 0.1  # the changed token itself does not forget
    assert moved[256, False] < moved[16, False] / 4


def test_depth_buys_influence_back() -> None:
    n, v = 100, 0.7
    x, y = np.zeros(n), np.zeros(n)
    x[0], y[0] = 1, -1
    depth = math.ceil(math.log(n + 1) / math.log(1 + v))
    for D in range(1, depth + 1):
        x, y = x + v * x.mean(), y + v * y.mean()
        assert abs((x - y)[-1] - 2 * ((1 + v) ** D - 1) / n) < 1e-12
    assert (x - y)[-1] >= 2
    assert max(abs(x)) <= 2 + 2 * v
    assert depth >= math.log(n * 2 / (2 * (2 + 2 * v))) / math.log(1 + v)  # the corollary's lower bound


def test_the_counting_network_relieves_length_collapse() -> None:
    for n in (8, 100, 256):
        net = CounterDyck1(n)
        word = torch.tensor([[0] * (n // 2) + [1] * (n // 2), [1] + [0] * (n // 2 - 1) + [1] * (n // 2)])
        states = net.states(word)
        first = (states[1][0, -1] - states[1][1, -1]).norm().item()
        assert abs(first - 2 / (n + 1)) < 1e-12
        assert (net(word)[0] - net(word)[1]).item() >= 1 - 1e-9


def test_random_bounded_networks_fall_with_length() -> None:
    net = BoundedNet(2, 8, seed=0, score=0.5, value=1.0, full=True)
    generator = torch.Generator().manual_seed(0)
    gaps = []
    for n in (32, 256):
        x = torch.randn(4, n, 8, generator=generator, dtype=torch.float64)
        x = x / x.norm(dim=-1, keepdim=True)
        y = torch.cat([-x[:, :1], x[:, 1:]], 1)
        gaps.append((net(x) - net(y)).norm(dim=-1)[:, 1:].mean().item())
    assert 4 < gaps[0] / gaps[1] < 16  # eight times the length, about an eighth of the influence


def test_the_cosine_between_layers_is_high() -> None:
    """The least cosine over all updates of relative size eta, by an optimiser."""
    for eta in (0.1, 0.5, 0.9):

        def cosine(angle: float, eta: float = eta) -> float:
            return (1 + eta * math.cos(angle)) / math.hypot(1 + eta * math.cos(angle), eta * math.sin(angle))

        least = optimize.minimize_scalar(cosine, bounds=(0, math.pi), method="bounded").fun
        assert abs(least - math.sqrt(1 - eta**2)) < 1e-8


def test_the_cosine_between_layers_is_blind() -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(7, 4)) + 2
    for angle in (0.1, 1.0, 3.0):
        c, s = math.cos(angle), math.sin(angle)
        Q = np.kron(np.eye(2), np.array([[c, -s], [s, c]]))
        Y = X @ Q.T
        cosines = (X * Y).sum(1) / np.linalg.norm(X, axis=1) / np.linalg.norm(Y, axis=1)
        assert np.allclose(cosines, c)
        assert np.allclose(np.linalg.svd(X - X.mean(0))[1], np.linalg.svd(Y - Y.mean(0))[1])
        assert math.isclose(np.linalg.norm(X - X.mean(0)), np.linalg.norm(Y - Y.mean(0)))


def test_the_decoder_loses_an_early_token_and_not_the_changed_one() -> None:
    torch.manual_seed(0)
    net = Transformer(vocab=8, classes=8, depth=1, width=32, encoding="nope").eval()
    ids = torch.randint(0, 8, (8, 256))
    other = torch.cat([(ids[:, :1] + 1) % 8, ids[:, 1:]], 1)
    with torch.no_grad():
        short = [net.states(w[:, :16])[-1] for w in (ids, other)]
        long = [net.states(w)[-1] for w in (ids, other)]
    gap = lambda pair, at: (pair[0] - pair[1])[:, at].norm(dim=-1).mean().item()  # noqa: E731
    assert gap(long, -1) < gap(short, -1) / 4
    assert abs(gap(long, 0) / gap(short, 0) - 1) < 1e-4
