"""The causal decoder of the book, one screen long.

Pre-LayerNorm blocks, GELU, an MLP twice as wide as the residual stream, heads of 16 dimensions. The position encoding
is a module of its own (`shiftbound.positions`) and reaches the computation in three places: the embeddings, the queries
and keys, the logits.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from shiftbound import positions, require
from shiftbound.stick_breaking import stick_breaking

HEAD = 16


def attention(
    q: Float[Tensor, "b h n e"],
    k: Float[Tensor, "b h n e"],
    v: Float[Tensor, "b h n c"],
    *,
    bias: Float[Tensor, "*#bh n n"] | None = None,
    mask: Bool[Tensor, "*#bh n n"] | None = None,
    scale: float | None = None,
    return_weights: bool = False,
) -> Float[Tensor, "b h n c"] | tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h n n"]]:
    """Causal softmax attention,

    $$ o_i = sum_{j <= i} a_ij v_j,   a_i = softmax_{j <= i}(scale q_i . k_j + bias_ij). $$

    ``mask`` is false where query i may not look at key j <= i; one key at least must stay. ``scale`` is 1/sqrt(e) if
    not given. With ``return_weights`` the pair (o, a) is returned, computed step by step; otherwise torch's fused
    kernel does the same sum. Queries, keys and values are of one float dtype, and so is o.

    >>> q = torch.zeros(1, 1, 2, 1); v = torch.tensor([[[[1.0], [3.0]]]])
    >>> attention(q, q, v).flatten().tolist()
    [1.0, 2.0]

    Source: Vaswani et al., Attention Is All You Need (2017).
    """
    n = q.shape[-2]
    if bias is None and mask is None and not return_weights:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    allowed = causal(n, device=q.device) if mask is None else mask & causal(n, device=q.device)
    shut = torch.zeros((), dtype=q.dtype, device=q.device) if bias is None else bias.to(q.dtype)
    bias = shut.masked_fill(~allowed, -math.inf)
    if not return_weights:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    weights = (scale * q @ k.transpose(-2, -1) + bias).softmax(-1)
    return weights @ v, weights


ATTENTIONS = {"softmax": attention, "stick-breaking": stick_breaking}


class Block(nn.Module):
    """x + attention(norm x), then x + MLP(norm x). ``attention`` is a name of `ATTENTIONS`."""

    def __init__(self, width: int, heads: int, mlp: int, dropout: float, attention: str = "softmax") -> None:
        super().__init__()
        self.heads, self.dropout, self.attend = heads, dropout, ATTENTIONS[attention]
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, mlp * width), nn.Linear(mlp * width, width)

    def forward(
        self,
        x: Tensor,
        ids: Tensor,
        encoding: positions.Encoding,
        bias: Tensor | None,
        mask: Tensor | None,
        sharpen: Tensor | None = None,
    ) -> Tensor:
        q, k, v = self.heads_of(x, ids, encoding, sharpen)
        x = x + self._drop(self.out(self.attend(q, k, v, bias=bias, mask=mask).transpose(1, 2).flatten(2)))
        return x + self._drop(self.down(F.gelu(self.up(self.norm_2(x)))))

    def heads_of(
        self, x: Tensor, ids: Tensor, encoding: positions.Encoding, sharpen: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head; queries times ``sharpen``, if given."""
        heads = self.qkv(self.norm_1(x)).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2)
        qk, v = heads.split((2 * self.heads, self.heads), 1)
        q, k = encoding.rotate(qk, ids).chunk(2, 1)
        return q if sharpen is None else q * sharpen, k, v

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Transformer(nn.Module):
    """A causal decoder with ``classes`` logits at every position.

    ``encoding`` names a position encoding (`shiftbound.positions`), ``heads`` is width / 16 unless given, ``window``
    bounds how many tokens a position sees, itself included (None: all before it). ``ids`` are the position ids, one row
    for all sequences or one each, 0..n-1 if not given. ``padding`` is true at padded tokens: nothing else sees them,
    and what the model says at them means nothing. ``attention`` is "softmax" or "stick-breaking". With ``log_scale``
    every logit of a query that sees m keys is multiplied by log(1 + m) (Chiang and Cholak, 2022).

    Embeddings start at N(0, .3^2), matrices at Xavier's uniform law, the two output projections of a block divided by
    sqrt(2 depth), biases at 0.

    >>> model = Transformer(vocab=5, classes=3, depth=1, width=16)
    >>> model(torch.zeros(2, 4, dtype=torch.int64)).shape
    torch.Size([2, 4, 3])

    Source: Radford et al., GPT-2 (2019), for the layout.
    """

    def __init__(
        self,
        vocab: int,
        classes: int,
        depth: int,
        width: int,
        encoding: str = "rope",
        heads: int | None = None,
        mlp: int = 2,
        dropout: float = 0.0,
        window: int | None = None,
        attention: str = "softmax",
        log_scale: bool = False,
    ) -> None:
        super().__init__()
        require(depth >= 0, "depth", depth, "a whole number of at least 0")
        heads = max(width // HEAD, 1) if heads is None else heads
        require(width >= heads >= 1 and width % heads == 0, "width", width, f"a multiple of the {heads} heads")
        require(window is None or window >= 1, "window", window, "a whole number of at least 1, or None")
        require(attention in ATTENTIONS, "attention", attention, "one of " + ", ".join(map(repr, ATTENTIONS)))
        self.window, self.log_scale = window, log_scale
        self.embed = nn.Embedding(vocab, width)
        self.encoding = positions.get(encoding, width=width, heads=heads)
        self.blocks = nn.ModuleList(Block(width, heads, mlp, dropout, attention) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self._initialise(depth)

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        ids: Int[Tensor, "*b n"] | None = None,
        padding: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b n classes"]:
        """The logits; the same as ``head`` of the last of `states`."""
        return self.head(self.states(tokens, ids, padding)[-1])

    def states(
        self,
        tokens: Int[Tensor, "b n"],
        ids: Int[Tensor, "*b n"] | None = None,
        padding: Bool[Tensor, "b n"] | None = None,
    ) -> list[Float[Tensor, "b n d"]]:
        """The residual stream after the embedding and after every block, then the final LayerNorm of the last:
        depth + 2 tensors."""
        n = tokens.shape[-1]
        ids = first_ids(n, device=tokens.device) if ids is None else ids
        first, bias, mask, sharpen = self.start(tokens, ids, padding)
        stream = [first]
        for block in self.blocks:
            stream.append(block(stream[-1], ids, self.encoding, bias, mask, sharpen))
        return [*stream, self.norm(stream[-1])]

    def start(
        self, tokens: Int[Tensor, "b n"], ids: Int[Tensor, "*b n"], padding: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], Tensor | None, Tensor | None, Tensor | None]:
        """What all blocks share: the stream that enters the first, the bias and mask of the logits, and the factor of
        the queries."""
        x, bias = self.encoding.enter(self.embed(tokens), ids, padding)
        mask = self._mask(tokens.shape[-1], padding, tokens.device)
        if not self.log_scale:
            return x, bias, mask, None
        seen = causal(tokens.shape[-1], device=tokens.device)
        keys = (seen if mask is None else seen & mask).sum(-1, keepdim=True)
        sharpen = keys.to(x.dtype).log1p()
        return x, None if bias is None else bias * sharpen, mask, sharpen

    def attention(self, tokens: Int[Tensor, "b n"], layer: int) -> Float[Tensor, "b h n n"]:
        """The attention weights of block number ``layer`` (from 0), for looking at.

        >>> model, tokens = Transformer(vocab=5, classes=3, depth=1, width=16), torch.zeros(1, 2, dtype=torch.int64)
        >>> model.attention(tokens, 0)[0, 0, 0].tolist()
        [1.0, 0.0]
        """
        require(layer in range(len(self.blocks)), "layer", layer, f"a whole number from 0 to {len(self.blocks) - 1}")
        ids = first_ids(tokens.shape[-1], device=tokens.device)
        _, bias, mask, sharpen = self.start(tokens, ids)
        block, stream = self.blocks[layer], self.states(tokens)[layer]
        q, k, v = block.heads_of(stream, ids, self.encoding, sharpen)
        return block.attend(q, k, v, bias=bias, mask=mask, return_weights=True)[1]

    def _mask(self, n: int, padding: Tensor | None, device: torch.device) -> Tensor | None:
        """Who may see whom beside causality: the window, and nothing padded (but a padded token sees itself, for a
        softmax needs one key)."""
        mask = None if self.window is None or self.window >= n else ~causal(n, -self.window, device=device)
        if padding is None:
            return mask
        seen = ~padding[:, None, None, :] | torch.eye(n, dtype=torch.bool, device=device)
        return seen if mask is None else seen & mask

    def _initialise(self, depth: int) -> None:
        nn.init.normal_(self.embed.weight, std=0.3)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                # Queries, keys and values are three square matrices, though kept as one.
                for part in module.weight.chunk(3 if name.endswith("qkv") else 1):
                    nn.init.xavier_uniform_(part)
                nn.init.zeros_(module.bias)
        with torch.no_grad():
            for block in self.blocks:
                block.out.weight.div_(math.sqrt(2 * depth))
                block.down.weight.div_(math.sqrt(2 * depth))


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def causal(n: int, offset: int = 0, *, device: torch.device) -> Bool[Tensor, "n n"]:
    """True where j <= i + offset."""
    return torch.ones(n, n, dtype=torch.bool, device=device).tril(offset)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def first_ids(n: int, *, device: torch.device) -> Int[Tensor, " n"]:
    """0, 1, ..., n-1."""
    return torch.arange(n, device=device)
