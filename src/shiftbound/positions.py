"""Position encodings: one class each, behind one interface.

A transformer asks its encoding for three things: a code that is added to the token embeddings (`Encoding.embed`), a
rotation of queries and keys (`Encoding.rotate`), and a bias added to the attention logits (`Encoding.bias`). Each
encoding answers one of them and leaves the others alone. It also says which position ids it wants to see in training
(`Encoding.training_ids`); outside training the ids are 0, 1, ..., n-1 unless the caller gives others.

`Counter` reads tokens instead of ids, and changes in the course of training (`Encoding.schedule`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from shiftbound import require

ROWS = 512


class Encoding(nn.Module):
    """The interface, and at the same time NoPE: nothing is added, turned or biased.

    Ids are whole numbers, either one row for the whole batch (``n``) or one row a sequence (``b n``).
    """

    def embed(self, x: Float[Tensor, "b n d"], ids: Int[Tensor, "*b n"]) -> Float[Tensor, "b n d"]:
        """The embeddings with the code of their position added."""
        return x

    def rotate(self, q_or_k: Float[Tensor, "b h n e"], ids: Int[Tensor, "*b n"]) -> Float[Tensor, "b h n e"]:
        """The queries (or keys) turned by the angle of their position."""
        return q_or_k

    def bias(self, ids_q: Int[Tensor, "*b n"], ids_k: Int[Tensor, "*b m"]) -> Float[Tensor, "*b h n m"] | None:
        """What is added to the logit of query i and key j, or None."""
        return None

    def enter(
        self, x: Float[Tensor, "b n d"], ids: Int[Tensor, "*b n"], padding: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "*b h n n"] | None]:
        """What the first block reads, and the bias of all blocks: of the ids alone, except for `Counter`."""
        return self.embed(x, ids), self.bias(ids, ids)

    def schedule(self, progress: float) -> None:
        """Told before every training step which share of the steps is done; nothing changes, except for `Counter`."""

    def training_ids(self, n: int, rng: np.random.Generator, size: int | None = None) -> Int[np.ndarray, "*b n"]:
        """Ids for training on ``n`` tokens: 0, 1, ..., n-1, except where an encoding draws a row for each of ``size``
        sequences (one row if None)."""
        return np.arange(n)


class NoPE(Encoding):
    """No position encoding at all; order reaches the model through the causal mask alone.

    Source: Kazemnejad et al., The Impact of Positional Encoding on Length Generalization in Transformers (2023).
    """


class LearnedAPE(Encoding):
    """Learned absolute positions: x_i + p_{id(i)}, with a trained table p of ``rows`` rows drawn from N(0, scale^2).

    An id outside the table raises `InputError`. A row whose id never occurs in training keeps its initial direction.

    >>> LearnedAPE(4, rows=8).embed(torch.zeros(1, 1, 4), torch.tensor([8]))
    Traceback (most recent call last):
    shiftbound.InputError: ids = 8 is not allowed; it must be a position id from 0 to 7, the rows of the table

    Source: Gehring et al., Convolutional Sequence to Sequence Learning (2017); Radford et al., GPT-2 (2019).
    """

    def __init__(self, width: int, rows: int = ROWS, scale: float = 0.3) -> None:
        super().__init__()
        require(rows >= 1, "rows", rows, "a whole number of at least 1")
        self.table = nn.Parameter(torch.randn(rows, width) * scale)

    def embed(self, x: Float[Tensor, "b n d"], ids: Int[Tensor, "*b n"]) -> Float[Tensor, "b n d"]:
        _within(ids, len(self.table))
        return x + nn.functional.embedding(ids, self.table)


class SinusoidalAPE(Encoding):
    """Fixed absolute positions: x_i + (sin m w_k, cos m w_k)_k with m = id(i), w_k = 10000^(-2k/d), any id.

    ``width`` must be even. The angles are computed in double precision.

    >>> SinusoidalAPE(4).embed(torch.zeros(1, 1, 4), torch.tensor([0]))
    tensor([[[0., 1., 0., 1.]]])

    Source: Vaswani et al., Attention Is All You Need (2017).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        require(width % 2 == 0, "width", width, "even, for a sine and a cosine of each frequency")
        self.frequencies = _frequencies(width, 1e4)

    def embed(self, x: Float[Tensor, "b n d"], ids: Int[Tensor, "*b n"]) -> Float[Tensor, "b n d"]:
        angles = ids.double().unsqueeze(-1) * self.frequencies.to(ids.device)
        return x + torch.stack((angles.sin(), angles.cos()), -1).flatten(-2).to(x.dtype)


class Rotary(Encoding):
    """Rotary positions: the k-th pair of coordinates of a query or key at id m is turned by the angle m * base^(-2k/e).

    The logit of positions i and j then depends on the ids through id(j) - id(i) only (`thm-rope`). Angles, cosines and
    sines are computed in double precision and rounded once to the dtype of the queries, so in fp32 the logits
    still change under a shift of the ids, by no more at large ids than at small ones. The table is kept for later.

    ``head_dim`` must be even.

    >>> Rotary(2).rotate(torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([0]))
    tensor([[[[1., 0.]]]])

    Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021).
    """

    def __init__(self, head_dim: int, base: float = 1e4) -> None:
        super().__init__()
        require(head_dim % 2 == 0, "head_dim", head_dim, "even, since coordinates are turned in pairs")
        require(base > 0, "base", base, "a positive number")
        self.frequencies = _frequencies(head_dim, base)
        self._ids = self._state = None

    def rotate(self, q_or_k: Float[Tensor, "b h n e"], ids: Int[Tensor, "*b n"]) -> Float[Tensor, "b h n e"]:
        turn = self._turn(ids, q_or_k.dtype)
        pairs = torch.view_as_complex(q_or_k.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turn).flatten(-2)

    def _turn(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """e^{i m w_k}, shape [*b 1 n e/2]; all layers of a forward pass ask with the same ids."""
        state = None if ids.is_inference() else (ids._version, dtype)
        if self._ids is not ids or self._state is None or self._state != state:
            # A table made in inference mode could not serve a later training step.
            with torch.inference_mode(False):
                angles = ids.double().unsqueeze(-1) * self.frequencies.to(ids.device)
                turn = torch.complex(angles.cos().to(dtype), angles.sin().to(dtype))
                self._table = turn.unsqueeze(-3)
            self._ids, self._state = ids, state
        return self._table


class ALiBi(Encoding):
    """A linear penalty on distance: slope_h * (id(j) - id(i)) is added to the logit of query i and key j.

    For 2^a heads the slopes are 2^(-8/2^a), 2^(-16/2^a), ...; for other head counts the slopes of the next lower power
    of two, followed by every other slope of the next higher one, as the authors do.

    >>> ALiBi(2).bias(torch.arange(2), torch.arange(2))[0]
    tensor([[ 0.0000,  0.0625],
            [-0.0625,  0.0000]])

    Source: Press, Smith, Lewis, Train Short, Test Long (2022).
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        require(heads >= 1, "heads", heads, "a whole number of at least 1")
        self.register_buffer("slopes", torch.tensor(_slopes(heads)), persistent=False)

    def bias(self, ids_q: Int[Tensor, "*b n"], ids_k: Int[Tensor, "*b m"]) -> Float[Tensor, "*b h n m"]:
        return self.slopes[:, None, None] * _distance(ids_q, ids_k).neg()


class T5Bias(Encoding):
    """A learned bias for each head and bucket of distances i - j: exact buckets for distances below ``buckets`` / 2,
    then logarithmic ones; everything from ``max_distance`` on shares the last.

    >>> T5Bias(heads=1).bucket[[0, 15, 16, 64, 128]].tolist()
    [0, 15, 16, 26, 31]

    Source: Raffel et al., Exploring the Limits of Transfer Learning (2020), in its one-sided (decoder) form.
    """

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, scale: float = 0.3) -> None:
        super().__init__()
        require(buckets >= 2, "buckets", buckets, "a whole number of at least 2")
        exact = buckets // 2
        require(max_distance > exact, "max_distance", max_distance, f"more than buckets / 2 = {exact}")
        growth = (buckets - exact) / math.log(max_distance / exact)
        bucket = [d if d < exact else exact + int(math.log(d / exact) * growth) for d in range(max_distance)]
        self.register_buffer("bucket", torch.tensor([*bucket, buckets - 1]), persistent=False)
        self.table = nn.Parameter(torch.randn(buckets, heads) * scale)

    def bias(self, ids_q: Int[Tensor, "*b n"], ids_k: Int[Tensor, "*b m"]) -> Float[Tensor, "*b h n m"]:
        distance = _distance(ids_q, ids_k).clamp(0, len(self.bucket) - 1)
        return nn.functional.embedding(self.bucket[distance.squeeze(-3)], self.table).movedim(-1, -3)


class OffsetAPE(LearnedAPE):
    """Learned absolute positions whose training ids start at a random row: s, s+1, ..., s+n-1, s uniform.

    Every row of the table is trained, which plain `LearnedAPE` does not do.

    >>> OffsetAPE(4).training_ids(3, np.random.default_rng(0))
    array([433, 434, 435])

    Source: Kiyono et al., SHAPE: Shifted Absolute Position Embedding for Transformers (2021).
    """

    def training_ids(self, n: int, rng: np.random.Generator, size: int | None = None) -> Int[np.ndarray, "*b n"]:
        _within(n - 1, len(self.table))
        start = rng.integers(0, len(self.table) - n + 1, size=size)
        return np.asarray(start)[..., None] + np.arange(n)


class RandomAPE(LearnedAPE):
    """Learned absolute positions whose training ids are a random subset of the rows, in increasing order.

    >>> RandomAPE(4).training_ids(3, np.random.default_rng(0))
    array([ 11, 269, 403])

    Source: Ruoss et al., Randomized Positional Encodings Boost Length Generalization of Transformers (2023).
    """

    def training_ids(self, n: int, rng: np.random.Generator, size: int | None = None) -> Int[np.ndarray, "*b n"]:
        _within(n - 1, len(self.table))
        # The n smallest of i.i.d. keys are a uniform subset.
        keys = rng.random((1 if size is None else size, len(self.table)))
        subset = np.sort(np.argpartition(keys, n - 1, axis=1)[:, :n], axis=1)
        return subset[0] if size is None else subset


class Counter(Encoding):
    """Learned counters: a head h adds up what each token counts, and prefers keys at a chosen difference of counts,

    $$ c_i = sum_{t <= i} tanh(g w_h . x_t),   bias_ij = -lambda_h (c_i + delta_h - c_j)^2, $$

    x the token embeddings, lambda_h > 0 (`eq-counter`). No position enters. All blocks share the counters. ``rounded``
    counters round each increment to -1, 0 or 1, with the gradient of the increment that was not rounded; with
    ``anneal`` the gain g rises from 1 to 6 over the first half of training, and the counters are rounded in the second.
    Without ``kernel`` nothing is biased: c_i u_h / 8 is added to the embeddings instead, u_h learned.

    >>> counter = Counter(2, heads=1)
    >>> _ = counter.hand_set([[5.0, 0.0]], decay=[1.0], offset=[0.0])
    >>> counter.counts(torch.tensor([[[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]])).tolist()
    [[[1.0, 2.0, 1.0]]]

    Source: ours; gates that count are due to Golovneva et al., Contextual Position Encoding (2024), and rounding in the
    forward pass alone to Bengio, Leonard, Courville (2013).
    """

    GAIN = (1.0, 6.0)

    def __init__(self, width: int, heads: int, *, kernel: bool = True, anneal: bool = True) -> None:
        super().__init__()
        require(heads >= 1, "heads", heads, "a whole number of at least 1")
        self.kernel, self.anneal = kernel, anneal
        self.weight = nn.Parameter(torch.randn(heads, width) * 0.3)
        if kernel:
            self.decay = nn.Parameter(torch.linspace(1, 8, heads))  # lambda before softplus
            self.offset = nn.Parameter(torch.zeros(heads))
        else:
            self.feature = nn.Parameter(torch.randn(heads, width) * 0.3)
        self.register_buffer("gain", torch.tensor(self.GAIN[0]))
        self.register_buffer("rounded", torch.tensor(False))

    def schedule(self, progress: float) -> None:
        """The gain, and whether counters are rounded, when the share ``progress`` of training is done."""
        if self.anneal:
            first, last = self.GAIN
            self.gain.fill_(first + (last - first) * min(1.0, 2 * progress))
            self.rounded.fill_(progress >= 0.5)

    def hand_set(self, weight: list[list[float]], decay: list[float], offset: list[float]) -> Counter:
        """Rounded counters with the weights w, lambda and delta given, head by head; returns itself."""
        require(self.kernel and min(decay) > 0, "decay", decay, "positive for each head, in a counter with a kernel")
        with torch.no_grad():
            self.weight.copy_(torch.tensor(weight))
            self.decay.copy_(torch.tensor(decay, dtype=torch.float64).expm1().log())
            self.offset.copy_(torch.tensor(offset))
            self.rounded.fill_(True)
        return self

    def increments(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n"]:
        """What each token adds to each head's counter."""
        soft = torch.tanh(self.gain * nn.functional.linear(x, self.weight)).transpose(1, 2)
        return soft + (soft.round() - soft).detach() if self.rounded else soft

    def counts(self, x: Float[Tensor, "b n d"], padding: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b h n"]:
        """The counters c_i; a padded token counts nothing."""
        steps = self.increments(x)
        return (steps if padding is None else steps.masked_fill(padding[:, None], 0.0)).cumsum(-1)

    def enter(
        self, x: Float[Tensor, "b n d"], ids: Int[Tensor, "*b n"], padding: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b h n n"] | None]:
        counts = self.counts(x, padding)
        if not self.kernel:
            return x + counts.transpose(1, 2) @ self.feature / 8, None
        gap = (counts + self.offset[:, None]).unsqueeze(-1) - counts.unsqueeze(-2)
        return x, gap.square() * -nn.functional.softplus(self.decay)[:, None, None]


ENCODINGS: dict[str, Callable[[int, int], Encoding]] = {
    "ape": lambda width, heads: LearnedAPE(width),
    "rope": lambda width, heads: Rotary(width // heads),
    "sinusoidal": lambda width, heads: SinusoidalAPE(width),
    "ape-offset": lambda width, heads: OffsetAPE(width),
    "ape-random": lambda width, heads: RandomAPE(width),
    "alibi": lambda width, heads: ALiBi(heads),
    "t5": lambda width, heads: T5Bias(heads),
    "nope": lambda width, heads: NoPE(),
    "counter": lambda width, heads: Counter(width, heads),
    "counter-soft": lambda width, heads: Counter(width, heads, anneal=False),
    "counter-feature": lambda width, heads: Counter(width, heads, kernel=False),
}


def get(name: str, *, width: int, heads: int) -> Encoding:
    """The encoding called ``name``, for a model of this width and number of heads.

    >>> get("alibi", width=64, heads=4)
    ALiBi()
    """
    require(name in ENCODINGS, "encoding", name, "one of " + ", ".join(map(repr, ENCODINGS)))
    return ENCODINGS[name](width, heads)


def _within(ids: Tensor | int, rows: int) -> None:
    low, high = map(int, torch.aminmax(ids)) if isinstance(ids, Tensor) else (ids, ids)
    allowed = f"a position id from 0 to {rows - 1}, the rows of the table"
    require(low >= 0, "ids", low, allowed)
    require(high < rows, "ids", high, allowed)


def _frequencies(dim: int, base: float) -> Tensor:
    return torch.tensor([base ** (-2 * k / dim) for k in range(dim // 2)], dtype=torch.float64)


def _distance(ids_q: Tensor, ids_k: Tensor) -> Tensor:
    """id(i) - id(j) in whole numbers, shape [*b 1 n m]: a common shift of all ids cancels exactly."""
    return (ids_q.unsqueeze(-1) - ids_k.unsqueeze(-2)).unsqueeze(-3)


def _slopes(heads: int) -> list[float]:
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return slopes if power == heads else slopes + _slopes(2 * power)[::2][: heads - power]
