"""Transformers whose weights are set by hand (chapter 5), and what they are held against.

    UniformDyck    Dyck-k at every length: 4 layers, ReGLU, width 3k + 13, no weight depends on the length
    ReluDyck       Dyck-k up to length N: 3 layers, plain ReLU, no position feature, width 3k + 12
    ScanDyck1      Dyck-1 with two reads a position: ceil(log2 n) layers
    CounterDyck1   Dyck-1 with weights at most 2 and bounded activations: 2 + 2 ceil(log2(n + 1)) layers
    BoundedNet     random attention of given norms, for the bound on influence
    strings, nest, hard_words    words to test them on

No training is involved. Tokens are those of `shiftbound.words`: 0..k-1 open, k..2k-1 close; each network puts its own
BOS token at index 0 and accepts a word where its logit is positive.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from shiftbound import require, words
from shiftbound.transformer import attention
from shiftbound.wiring import HandSet, Row, Wiring, rounded

__all__ = [
    "BoundedNet", "CounterDyck1", "ReluDyck", "ScanDyck1", "UniformDyck",
    "hard_words", "influence_bound", "nest", "rounded", "strings",
]  # fmt: skip


def _brackets(k: int) -> tuple[list[str], list[Row]]:
    """The features that say which token stands here, and their embedding; BOS last."""
    require(isinstance(k, int) and k >= 1, "k", k, "a whole number of at least 1 (bracket types)")
    names = [f"{kind} {c}" for kind in ("open", "close", "match") for c in range(k)]
    rows = [{f"open {c}": 1, "one": 1, "sign": 1} for c in range(k)]
    rows += [{f"close {c}": 1, "one": 1, "sign": -1, "closing": 1} for c in range(k)]
    return [*names, "bos", "one", "sign", "closing"], [*rows, {"bos": 1, "one": 1}]


class UniformDyck(HandSet):
    """Dyck-k at every length, with one set of weights: theorem {prf:ref}`thm-dyck-uniform`.

    Four layers, ReGLU, width 3k + 13, position feature i + 1. Layer 1 averages the signs and multiplies by i + 1: the
    heights. Layer 2 prepares products. Layer 3 scores key j from query i, up to a row constant, by

        β [ -2(i+1)(h_i + 1 - h_j)² + (j + 1) - 4(i+1)(close_j + bos_j) ],      β = ``temperature``,

    which is largest at the matching bracket, and compares types. Layer 4 averages the violations. Exact for β ≥ 1 in
    exact arithmetic. Raises `InputError` for k < 1 or a temperature that is not positive.

    >>> net = UniformDyck(2)
    >>> net(torch.tensor([[0, 1, 3, 2], [0, 1, 2, 3]])).tolist()
    [0.5, -1.5]
    """

    matching = 2

    def __init__(self, k: int = 2, temperature: int | float = 40.0, dtype: torch.dtype = torch.float64) -> None:
        features, embedding = _brackets(k)
        require(temperature > 0, "temperature", temperature, "a positive number")
        features += ["position", "mean", "height", "square", "product", "positive"]
        features += ["violation", "violation mean", "count"]
        beta = float(temperature)
        wrong = {f"wrong {c}": ({f"close {c}": 2, f"match {c}": -2, "one": -1}, {"one": 1}) for c in range(k)}
        wirings = [
            Wiring(
                value={"mean": {"sign": 1}},
                units={"height": ({"position": 1}, {"mean": 1})},
                write={"height": {"height": 1}},
            ),
            Wiring(
                units={
                    "square of height > 0": ({"height": 1}, {"height": 1}),
                    "square of height < 0": ({"height": -1}, {"height": -1}),
                    "product": ({"position": 1}, {"height": 1}),
                    "positive": ({"height": 1}, {"one": 1}),
                },
                write={
                    "square": {"square of height > 0": 1, "square of height < 0": 1},
                    "product": {"product": 1},
                    "positive": {"positive": 1},
                },
            ),
            Wiring(
                query=[
                    {"product": 4 * beta, "position": 4 * beta},
                    {"position": -2 * beta},
                    {"one": beta},
                    {"position": -4 * beta},
                ],
                key=[{"height": 1}, {"square": 1}, {"position": 1}, {"closing": 1, "bos": 1}],
                value={f"match {c}": {f"open {c}": 1} for c in range(k)},
                units={"below": ({"height": -1}, {"one": 1}), **wrong},
                write={"violation": dict.fromkeys(["below", *wrong], 1)},
            ),
            Wiring(
                value={"violation mean": {"violation": 1}},
                units={"count": ({"position": 1}, {"violation mean": 1})},
                write={"count": {"count": 1}},
            ),
        ]
        super().__init__(features, embedding, wirings, {"one": 0.5, "count": -1, "positive": -1}, dtype, "position")


class ReluDyck(HandSet):
    """Dyck-k up to length N without products and without positions: theorem {prf:ref}`thm-dyck-relu`.

    Three layers, plain ReLU, width 3k + 12, 4N + 2 hidden units in layer 1. That layer averages signs and BOS, which
    gives h_i/(i+1) and 1/(i+1), and counts with clipped steps: h⁺ = Σ_m [h ≥ m], (h⁺)² = Σ_m (2m-1)[h ≥ m], i the same
    way. Matching is that of `UniformDyck` with N + 1 in place of i + 1. Words longer than N are answered, not decided.
    Raises `InputError` for k < 1, N < 1 or a temperature that is not positive.

    >>> ReluDyck(2, 8)(torch.tensor([[0, 1, 3, 2], [0, 1, 2, 3]])).sign().tolist()
    [1.0, -1.0]
    """

    matching = 1

    def __init__(
        self, k: int = 2, N: int = 64, temperature: int | float = 40.0, dtype: torch.dtype = torch.float64
    ) -> None:
        features, embedding = _brackets(k)
        require(isinstance(N, int) and N >= 1, "N", N, "a whole number of at least 1 (the longest word)")
        require(temperature > 0, "temperature", temperature, "a positive number")
        features += ["mean", "inverse", "height", "square", "position", "below", "violation", "violation mean"]
        scale, beta = N + 1, float(temperature)
        units: dict[str, tuple[Row, ...]] = {}

        def step(name: str, row: Row) -> Row:
            """clip(scale·row + ½, 0, 1) as the difference of two hidden units: what to write for it."""
            for side, half in (("low", 0.5), ("high", -0.5)):
                gate = {column: scale * value for column, value in row.items()}
                units[f"{name} {side}"] = ({**gate, "one": gate.get("one", 0) + half},)
            return {f"{name} low": 1, f"{name} high": -1}

        height, square, position = {}, {}, {}
        for m in range(1, N + 1):
            up = step(f"height >= {m}", {"mean": 1, "inverse": 0.5 - m})
            height |= up
            square |= {unit: (2 * m - 1) * sign for unit, sign in up.items()}
            position |= step(f"index >= {m}", {"one": 1, "inverse": -0.5 - m})
        below = step("height < 0", {"mean": -1, "inverse": -0.5})
        wrong = {f"wrong {c}": ({f"close {c}": 1, f"match {c}": -1},) for c in range(k)}
        wirings = [
            Wiring(
                value={"mean": {"sign": 1}, "inverse": {"bos": 1}},
                units=units,
                write={"height": height, "square": square, "position": position, "below": below},
            ),
            Wiring(
                query=[
                    {"height": 4 * beta * scale, "one": 4 * beta * scale},
                    {"one": -2 * beta * scale},
                    {"one": beta},
                    {"one": -4 * beta * scale},
                ],
                key=[{"height": 1}, {"square": 1}, {"position": 1}, {"closing": 1, "bos": 1}],
                value={f"match {c}": {f"open {c}": 1} for c in range(k)},
                units={"below": ({"below": 1},), **wrong},
                write={"violation": dict.fromkeys(["below", *wrong], 1)},
            ),
            Wiring(value={"violation mean": {"violation": 1}}),
        ]
        readout = {"one": 0.5, "violation mean": -scale, "height": -1}
        super().__init__(features, embedding, wirings, readout, dtype)


class ScanDyck1(HandSet):
    """Dyck-1 up to length n by a parallel scan: {prf:ref}`thm-light-cone`, attained with two reads a position.

    In layer l = 0, 1, ..., ceil(log2 n) - 1 index i reads itself and max(i - 2^l, 0), and joins two neighbouring blocks
    (sum s, lowest prefix sum m ≤ 0): (s, m)·(s', m') = (s + s', min(m, s + m')). Plain ReLU, margin ½. ``depth`` below
    the default gives a network that cannot see far enough. Raises `InputError` for n < 1.

    >>> ScanDyck1(4)(torch.tensor([[0, 0, 1, 1], [0, 1, 1, 0]])).tolist()
    [0.5, -1.5]

    Source: Hillis and Steele, Data parallel algorithms (1986).
    """

    def __init__(self, n: int, depth: int | None = None, dtype: torch.dtype = torch.float64) -> None:
        require(isinstance(n, int) and n >= 1, "n", n, "a whole number of at least 1 (the longest word)")
        units = {
            "sum > 0": ({"left sum": 1},),
            "sum < 0": ({"left sum": -1},),
            "left low": ({"left low": -1},),
            "own low": ({"low": -1},),
            "excess": ({"left low": 1, "left sum": -1, "low": -1},),  # m - min(m, s + m')
        }
        write = {
            "sum": {"sum > 0": 1, "sum < 0": -1},
            "low": {"left low": -1, "own low": 1, "excess": -1},
            "left sum": {"sum > 0": -1, "sum < 0": 1},  # rubbed out, so that the next layer can write here
            "left low": {"left low": 1},
        }
        value = {"left sum": {"sum": 1}, "left low": {"low": 1}}
        depth = math.ceil(math.log2(n)) if depth is None else depth
        wirings = [Wiring(value=value, units=units, write=write, stride=2**layer) for layer in range(depth)]
        embedding = [{"one": 1, "sum": 1}, {"one": 1, "sum": -1, "low": -1}, {"one": 1}]
        features = ["one", "sum", "low", "left sum", "left low"]
        super().__init__(features, embedding, wirings, {"one": 0.5, "low": 2, "sum": -1}, dtype)


class CounterDyck1(HandSet):
    """Dyck-1 up to length n with weights of size at most 2 and activations of size at most 2.

    A causal mean gives h_i/(i+1); ceil(log2(n+1)) layers clip(2x, -1, 1) turn it into its sign; a second mean of
    [h_i < 0] is doubled in the same way. Margin ½, so {prf:ref}`cor-bounded-depth` applies. Raises `InputError` for
    n < 1.

    >>> net = CounterDyck1(4)
    >>> net.depth, net(torch.tensor([[0, 0, 1, 1], [0, 1, 1, 0]])).sign().tolist()
    (8, [1.0, -1.0])
    """

    def __init__(self, n: int, dtype: torch.dtype = torch.float64) -> None:
        require(isinstance(n, int) and n >= 1, "n", n, "a whole number of at least 1 (the longest word)")
        doublings = math.ceil(math.log2(n + 1))

        def doubling(name: str, last: bool = False) -> Wiring:
            units = {
                "low": ({name: 2, "one": 1},),
                "high": ({name: 2, "one": -1},),
                "plus": ({name: 1},),
                "minus": ({name: -1},),
                "one": ({"one": 1},),
            }
            write = {name: {"low": 1, "high": -1, "one": -1, "plus": -1, "minus": 1}}
            if last:  # [h < 0] = clip(-2x, 0, 1) of the mean before its last doubling
                units |= {"below": ({name: -2},), "far below": ({name: -2, "one": -1},)}
                write["below"] = {"below": 1, "far below": -1}
            return Wiring(units=units, write=write)

        wirings = [
            Wiring(value={"balance": {"sign": 1}}),
            *(doubling("balance", last=layer == doublings - 1) for layer in range(doublings)),
            Wiring(value={"fault": {"below": 1}}),
            *(doubling("fault") for _ in range(doublings)),
        ]
        embedding = [{"one": 1, "sign": 1}, {"one": 1, "sign": -1}, {"one": 1}]
        readout = {"one": 0.5, "fault": -2, "balance": -1}
        super().__init__(["one", "sign", "balance", "below", "fault"], embedding, wirings, readout, dtype)


class BoundedNet(nn.Module):
    """Random attention with known constants, for {prf:ref}`thm-bounded-influence`: x ← Π_R(x + Σ_h Σ_j α^h_ij V_h x_j).

    Logits x_iᵀA_h x_j with ‖A_h‖ = ``score``, Σ_h ‖V_h‖ = ``value``, Π_R the projection onto the ball of ``radius`` R,
    which is 1-Lipschitz. ``full`` attention or causal. Points of the input must lie in the ball.

    >>> net = BoundedNet(depth=2, width=8, seed=0, value=0.5)
    >>> net.p, round(net.q, 4)
    (2.0, 11.0836)
    """

    def __init__(
        self,
        depth: int,
        width: int,
        seed: int,
        *,
        score: int | float = 1.0,
        value: int | float = 1.0,
        heads: int = 1,
        radius: int | float = 1.0,
        full: bool = False,
    ) -> None:
        super().__init__()
        for name, given in (("depth", depth), ("width", width), ("heads", heads)):
            require(isinstance(given, int) and given >= 1, name, given, "a whole number of at least 1")
        draws = torch.randn(2, depth, heads, width, width, generator=torch.Generator().manual_seed(seed))
        matrices = draws.double() / torch.linalg.matrix_norm(draws.double(), 2)[..., None, None]
        self.register_buffer("A", score * matrices[0])
        self.register_buffer("V", value / heads * matrices[1])
        self.depth, self.radius, self.full = depth, radius, full
        spread = score * radius**2
        self.p, self.q = 1 + 2 * spread * value, value * (1 + 2 * spread) * math.exp(2 * spread)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """The states after the last layer."""
        run = nn.functional.scaled_dot_product_attention if self.full else attention
        for A, V in zip(self.A, self.V, strict=True):
            heads = x[:, None]
            x = x + run(heads @ A, heads.expand(-1, len(A), -1, -1), heads @ V.mT, scale=1.0).sum(1)
            x = x * (self.radius / x.norm(dim=-1, keepdim=True)).clamp(max=1)
        return x


def influence_bound(n: int, depth: int, p: float, q: float, radius: int | float = 1.0, full: bool = False) -> float:
    """How far one token can move the read-out after ``depth`` layers, {eq}`eq-influence`: 2R((p+qH)^D - p^D)/(nH).

    H = 1 for full attention and 1 + 1/2 + ... + 1/n for causal attention read at the last token.

    >>> influence_bound(10, 1, 2.0, 3.0, full=True)
    0.6
    """
    harmonic = 1.0 if full else math.fsum(1 / i for i in range(1, n + 1))
    return 2 * radius * ((p + q * harmonic) ** depth - p**depth) / (n * harmonic)


def strings(k: int, n: int) -> Int[np.ndarray, "count n"]:
    """All (2k)^n strings of length n, balanced or not.

    >>> strings(1, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return (
        np.stack(np.meshgrid(*[np.arange(2 * k)] * n, indexing="ij"), -1).reshape(-1, n) if n else np.zeros((1, 0), int)
    )


def nest(n: int, depth: int, k: int) -> Int[np.ndarray, " n"]:
    """(^depth ()[]()[]... )^depth, types in turn: a member of length n that is hard for rounded arithmetic.

    >>> words.render(nest(12, 2, 2))
    '((()[]()[]))'
    """
    pairs = [token for c in range(n // 2 - depth) for token in (c % k, c % k + k)]
    return np.array([0] * depth + pairs + [k] * depth)


def hard_words(rng: np.random.Generator, n: int, k: int, size: int = 2) -> Int[np.ndarray, "count n"]:
    """Members of even length n (random, flat, deep, nested) and what one edit makes of each.

    Edits: one bracket flipped, one type changed (k ≥ 2), two tokens swapped, the word rotated by one, reversed.
    """
    types = rng.integers(k, size=n // 2)
    deep = np.concatenate([types, types[::-1] + k])
    members = [*words.sample(rng, size, n, k), deep, nest(n, 0, k), nest(n, n // 4, k), nest(n, n // 3, k)]
    found = []
    for word in members:
        at, other = rng.choice(n, 2, replace=False)
        flipped, typed, swapped = word.copy(), word.copy(), word.copy()
        flipped[at] = (word[at] + k) % (2 * k)
        typed[at] = (word[at] % k + 1) % k + word[at] // k * k
        swapped[[at, other]] = word[[other, at]]
        found += [word, flipped, typed, swapped, np.roll(word, 1), word[::-1]]
    return np.array(found)
