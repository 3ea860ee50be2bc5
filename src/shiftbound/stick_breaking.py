"""Attention that breaks a stick: the most recent acceptable key takes what it wants, older keys share the rest."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

BLOCK = 2**16  # logits of a head that are worked on at a time where no gradient is wanted: they fit into a cache


def stick_breaking(
    q: Float[Tensor, "b h n e"],
    k: Float[Tensor, "b h n e"],
    v: Float[Tensor, "b h n c"],
    *,
    bias: Float[Tensor, "*#bh n n"] | None = None,
    mask: Bool[Tensor, "*#bh n n"] | None = None,
    scale: float | None = None,
    return_weights: bool = False,
) -> Float[Tensor, "b h n c"] | tuple[Float[Tensor, "b h n c"], Float[Tensor, "b h n n"]]:
    """Causal stick-breaking attention, with the arguments of `shiftbound.transformer.attention`:

    $$ o_i = sum_{j <= i} a_ij v_j,   a_ij = b_ij prod_{j < l <= i} (1 - b_il),   b_ij = sigmoid(z_ij), $$

    z_ij = scale q_i . k_j + bias_ij (`eq-stick`). Walking back from i itself, key j takes the share b_ij of what is
    left of a stick of length 1. A row of a sums to 1 - prod_j (1 - b_ij), so at most to 1. With s(z) = log(1 + e^z)

    $$ log a_ij = z_ij - sum_{j <= l <= i} s(z_il), $$

    which neither overflows nor multiplies small numbers. A key that ``mask`` shuts, or of the future, takes nothing.

    >>> z = torch.zeros(1, 1, 3, 1)
    >>> stick_breaking(z, z, z, return_weights=True)[1][0, 0].tolist()
    [[0.5, 0.0, 0.0], [0.25, 0.5, 0.0], [0.125, 0.25, 0.5]]

    Source: Tan et al., Scaling Stick-Breaking Attention (2025), here with the query's own position among the keys.
    """
    n, scale = q.shape[-2], q.shape[-1] ** -0.5 if scale is None else scale
    rows = n if torch.is_grad_enabled() or return_weights else max(1, min(n, BLOCK // (q.shape[0] * n)))
    future = torch.full((rows, rows), -math.inf, dtype=q.dtype, device=q.device).triu(1)
    out = []
    for start in range(0, n, rows):
        end = min(start + rows, n)
        z = scale * q[..., start:end, :] @ k[..., :end, :].transpose(-2, -1)
        z = z if bias is None else z + bias[..., start:end, :end].to(q.dtype)
        z = z + F.pad(future[: end - start, : end - start], (start, 0))
        z = z if mask is None else z.masked_fill(~mask[..., start:end, :end], -math.inf)
        weights = (z + F.logsigmoid(-z).flip(-1).cumsum(-1).flip(-1)).exp()
        out.append(weights @ v[..., :end, :])
    mixed = out[0] if len(out) == 1 else torch.cat(out, -2)
    return (mixed, weights) if return_weights else mixed
