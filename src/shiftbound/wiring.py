"""Transformers wired by hand: a residual stream with named coordinates, and linear maps that can be read.

`Wiring` says in words what a layer does, `Layer` and `HandSet` turn that into tensors, `Map.formulas` reads the tensors
back, and `rounded` evaluates the same tensors in arithmetic of any precision. Attention is
`shiftbound.transformer.attention`, one head a layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from shiftbound import require
from shiftbound.transformer import attention

Row = Mapping[str, int | float]


class Map(nn.Module):
    """A linear map y_r = Σ_c weight[r, c] x_c whose rows and columns have names; an empty row is zero.

    >>> Map({"height": {"mean": 1, "one": -2}}, ["one", "mean"]).formulas()
    {'height': '-2 one + mean'}
    """

    def __init__(self, rows: Mapping[str, Row], columns: Sequence[str], dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.rows, self.columns = list(rows), list(columns)
        weight = torch.zeros(len(self.rows), len(self.columns), dtype=dtype)
        for r, row in enumerate(rows.values()):
            for column, value in row.items():
                weight[r, self.columns.index(column)] = value
        self.register_buffer("weight", weight)

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch r"]:
        return nn.functional.linear(x, self.weight)

    def formulas(self) -> dict[str, str]:
        """What each row does, read off the tensor; zero rows are left out."""
        said = {}
        for name, row in zip(self.rows, self.weight.tolist(), strict=True):
            terms = [(value, column) for value, column in zip(row, self.columns, strict=True) if value]
            text = " ".join(f"{'-' if v < 0 else '+'} {'' if abs(v) == 1 else f'{abs(v):g} '}{c}" for v, c in terms)
            if terms:
                said[name] = text[2:] if text[0] == "+" else "-" + text[2:]
        return said


@dataclass(frozen=True)
class Wiring:
    """A layer in words: what its tensors are filled from.

    ``query[e]`` and ``key[e]`` give coordinate e of queries and keys. ``value`` maps a coordinate of the stream to the
    row that attention averages into it. ``units`` maps a hidden unit to its gate and, for ReGLU, to the row that the
    gate multiplies; ``write`` says how units are added to the stream. With ``stride`` r, index i reads max(i - r, 0)
    and nothing else.
    """

    query: Sequence[Row] = ({},)
    key: Sequence[Row] = ({},)
    value: Mapping[str, Row] = field(default_factory=dict)
    units: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    write: Mapping[str, Row] = field(default_factory=dict)
    stride: int | None = None


class Layer(nn.Module):
    """x ← x + W_o attention(Qx, Kx, Vx), then x ← x + W₂(ReLU(W₁x) ⊙ W₃x), or W₂ReLU(W₁x). No LayerNorm."""

    def __init__(self, wiring: Wiring, features: Sequence[str], dtype: torch.dtype) -> None:
        super().__init__()
        value, units = wiring.value or {"idle": {}}, wiring.units
        self.query = Map({str(e): row for e, row in enumerate(wiring.query)}, features, dtype)
        self.key = Map({str(e): row for e, row in enumerate(wiring.key)}, features, dtype)
        self.value = Map(value, features, dtype)
        self.output = Map({name: {name: 1} if name in value else {} for name in features}, list(value), dtype)
        self.gate = Map({name: unit[0] for name, unit in units.items()}, features, dtype)
        gated = any(len(unit) == 2 for unit in units.values())
        self.up = Map({name: unit[1] for name, unit in units.items()}, features, dtype) if gated else None
        self.down = Map({name: wiring.write.get(name, {}) for name in features}, list(units), dtype)
        self.stride = wiring.stride

    def attend(self, x: Float[Tensor, "b m d"]) -> tuple[Float[Tensor, "b m d"], Float[Tensor, "b m m"]]:
        """What attention adds to the stream, and its weights."""
        out, weights = self._attention(x, return_weights=True)
        return self.output(out[:, 0]), weights[:, 0]

    def forward(self, x: Float[Tensor, "b m d"], stepwise: bool = False) -> Float[Tensor, "b m d"]:
        x = x + (self.attend(x)[0] if stepwise else self.output(self._attention(x)[:, 0]))
        hidden = self.gate(x).relu()
        return x + self.down(hidden if self.up is None else hidden * self.up(x))

    def formulas(self) -> list[str]:
        """What the layer does, line by line, read off its tensors; units written to their own name stand for both."""
        q, k, gate = (part.formulas() for part in (self.query, self.key, self.gate))
        up = {} if self.up is None else self.up.formulas()
        lines = [f"score  ({q[e]}) · ({k[e]})" for e in q if e in k]
        lines += [f"read   {name} = average of {row}" for name, row in self.value.formulas().items()]
        for name, row in gate.items():
            lines.append(f"unit   {name} = ReLU({row})" + (f" · ({up[name]})" if name in up else ""))
        return lines + [f"write  {name} = {row}" for name, row in self.down.formulas().items() if row != name]

    def _attention(self, x: Tensor, **options: bool) -> Tensor | tuple[Tensor, Tensor]:
        mask = None
        if self.stride is not None:
            ids = torch.arange(x.shape[1], device=x.device)
            mask = ids == (ids - self.stride).clamp(min=0)[:, None]
        q, k, v = (part(x)[:, None] for part in (self.query, self.key, self.value))
        return attention(q, k, v, mask=mask, scale=1.0, **options)


class HandSet(nn.Module):
    """A causal Transformer built from wirings; it accepts a word where its logit, read at the last index, is positive.

    ``embedding`` holds one row a token and, last, one for BOS. If there is a ``clock``, that feature starts as i + 1 at
    index i. ``matching`` is the layer whose attention looks for the matching bracket, where there is one.
    """

    matching: int | None = None

    def __init__(
        self,
        features: Sequence[str],
        embedding: Sequence[Row],
        wirings: Sequence[Wiring],
        readout: Row,
        dtype: torch.dtype,
        clock: str | None = None,
    ) -> None:
        super().__init__()
        self.features, self.clock = list(features), clock
        self.embedding = Map({str(token): row for token, row in enumerate(embedding)}, features, dtype)
        self.layers = nn.ModuleList(Layer(wiring, features, dtype) for wiring in wirings)
        self.readout = Map({"logit": readout}, features, dtype)

    @property
    def width(self) -> int:
        return len(self.features)

    @property
    def depth(self) -> int:
        return len(self.layers)

    def embed(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b m d"]:
        """The stream before the first layer, m = n + 1. Raises `InputError` for an unknown token."""
        bos = len(self.embedding.rows) - 1
        bad = tokens[(tokens < 0) | (tokens >= bos)]
        require(len(bad) == 0, "token", bad[:1].tolist(), f"a whole number from 0 to {bos - 1}")
        x = self.embedding.weight[nn.functional.pad(tokens, (1, 0), value=bos)]
        if self.clock:
            ids = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device=x.device)
            x[..., self.features.index(self.clock)] = ids
        return x

    def states(self, tokens: Int[Tensor, "b n"], stepwise: bool = False) -> list[Float[Tensor, "b m d"]]:
        """The stream before the first layer and after each layer.

        ``stepwise`` sums attention in the order of the formula instead of that of torch's fused kernel; the two differ
        by rounding alone.
        """
        found = [self.embed(tokens)]
        for layer in self.layers:
            found.append(layer(found[-1], stepwise))
        return found

    def forward(self, tokens: Int[Tensor, "b n"], stepwise: bool = False) -> Float[Tensor, " b"]:
        """The logits of words of one length."""
        return self.readout(self.states(tokens, stepwise)[-1][:, -1])[:, 0]

    def logits(self, words: Int[np.ndarray, "count n"], stepwise: bool = False) -> Float[np.ndarray, " count"]:
        """The logits of any number of words, in batches of at most 2^20 attention weights a layer."""
        size = max(1, 2**20 // (words.shape[1] + 1) ** 2)
        parts = [words[start : start + size] for start in range(0, len(words), size)]
        return np.concatenate([self(torch.from_numpy(np.ascontiguousarray(part)), stepwise).numpy() for part in parts])

    def read(self, tokens: Int[Tensor, "b n"], feature: str) -> Float[Tensor, "b m"]:
        """One named coordinate of the last stream, such as "height" or "violation"."""
        require(feature in self.features, "feature", feature, f"one of {', '.join(self.features)}")
        return self.states(tokens)[-1][..., self.features.index(feature)]

    def attention(self, tokens: Int[Tensor, "b n"], layer: int | None = None) -> Float[Tensor, "b m m"]:
        """The weights of layer number ``layer`` (from 0), by default the one that looks for matching brackets."""
        layer = self.matching if layer is None else layer
        require(layer in range(self.depth), "layer", layer, f"a whole number from 0 to {self.depth - 1}")
        return self.layers[layer].attend(self.states(tokens)[layer])[1]


def rounded(network: HandSet, tokens: Int[Tensor, "b n"], bits: int) -> Float[Tensor, " b"]:
    """The logits of ``network`` when every operation is rounded to ``bits`` significant bits: {prf:ref}`prp-dyck-bits`.

    Sums run from left to right. Additions, products, quotients have relative error at most 2^-bits, exp twice that.
    Exponents are those of float64. Raises `InputError` unless 2 ≤ bits ≤ 52.

    >>> from shiftbound.constructions import UniformDyck
    >>> rounded(UniformDyck(1), torch.tensor([[0, 1], [1, 0]]), 20).sign().tolist()
    [1.0, -1.0]
    """
    require(isinstance(bits, int) and 2 <= bits <= 52, "bits", bits, "a whole number from 2 to 52")
    split = 2.0 ** (53 - bits) + 1

    def fl(x: Tensor) -> Tensor:  # Veltkamp's splitting keeps the leading bits
        return split * x - (split * x - x)

    def apply(linear: Map, x: Tensor) -> Tensor:
        y = x.new_zeros(*x.shape[:-1], len(linear.rows))
        for c in linear.weight.abs().sum(0).nonzero()[:, 0]:
            y = fl(y + fl(linear.weight[:, c] * x[..., c, None]))
        return y

    x = network.embed(tokens).double()
    past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    for layer in network.layers:
        q, k, v = apply(layer.query, x), apply(layer.key, x), apply(layer.value, x)
        score = x.new_zeros(len(x), *past.shape)
        for e in range(q.shape[-1]):
            score = fl(score + fl(q[:, :, None, e] * k[:, None, :, e]))
        top = score.masked_fill(~past, -math.inf).amax(-1, keepdim=True)
        power = fl(fl(score - top).masked_fill(~past, -math.inf).exp())
        total, out = torch.zeros_like(top[..., 0]), torch.zeros_like(v)
        for j in range(x.shape[1]):
            total = fl(total + power[..., j])
        weight = fl(power / total[..., None])
        for j in range(x.shape[1]):
            out = fl(out + fl(weight[..., j, None] * v[:, None, j]))
        x = fl(x + apply(layer.output, out))
        hidden = apply(layer.gate, x).relu()
        x = fl(x + apply(layer.down, hidden if layer.up is None else fl(hidden * apply(layer.up, x))))
    return apply(network.readout, x[:, -1])[:, 0]
