"""The model that chapter 15 trains, with its weights set by hand; and what gradient descent does to weights that are
exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from shiftbound import require
from shiftbound.transformer import HEAD, Transformer

if TYPE_CHECKING:
    from shiftbound.tasks.dyck import Dyck


def exact_form(
    task: Dyck,
    *,
    strength: int | float = 10.0,
    penalty: int | float = 40.0,
    log_scale: bool = False,
    width: int | None = None,
) -> Transformer:
    """One block of `shiftbound.transformer.Transformer` that answers `tasks.dyck` or `tasks.search` without an error.

    Head 0 counts +1 at an open, -1 at a close, 0 at BOS; rounded, so exactly. Its logit is, with B = ``strength``,
    lambda = ``penalty`` and C = lambda - B ({prf:ref}`thm-learn-form`),

    $$ z_ij = B [j is an open] - C [j is no open] - lambda (c_i - c_j)^2, $$

    and its value the open's type; the answer is the type that gets more than half of the stick, none if none does. The
    other heads and the MLP write nothing. LayerNorm changes the scale alone, since each embedding u comes with -u.
    ``width`` is the least multiple of 16 that holds the 4k + 4 coordinates, unless given. Needs k <= 16 types.

    >>> from shiftbound import tasks, words
    >>> task = tasks.get("dyck")
    >>> exact_form(task)(torch.from_numpy(task.rows(words.parse("([()])")[None]))).argmax(-1).tolist()
    [[0, 1, 2, 1, 2, 1, 0]]
    """
    k, need = task.k, 4 * task.k + 4
    require(k <= HEAD, "k", k, f"at most {HEAD}, the size of a head")
    width = HEAD * math.ceil(need / HEAD) if width is None else width
    require(width % HEAD == 0 and width >= need, "width", width, f"a multiple of {HEAD} of at least 4k + 4 = {need}")
    require(penalty > strength > 0, "penalty", penalty, f"above strength = {strength}, which is positive")
    form = {"attention": "stick-breaking", "log_scale": log_scale}
    model = Transformer(task.vocab, task.classes, 1, width, "counter", **form)
    block, heads = model.blocks[0], width // HEAD
    with torch.no_grad():
        for parameter in (model.embed.weight, *block.qkv.parameters(), *block.out.parameters()):
            parameter.zero_()
        for parameter in (*block.up.parameters(), *block.down.parameters(), *model.head.parameters()):
            parameter.zero_()
        close, bos, half = k, k + 1, k + 2  # coordinates: opens 0..k-1, close, BOS; then their negatives; then answers
        place = [bos, *range(k), *[close] * (task.vocab - 1 - k)]
        for token, at in enumerate(place):
            model.embed.weight[token, at], model.embed.weight[token, at + half] = 1.0, -1.0
        seen = (2 / width + block.norm_1.eps) ** 0.5  # LayerNorm divides by it
        block.qkv.bias[0] = HEAD**0.5
        block.qkv.weight[width, :k] = strength * seen
        block.qkv.weight[width, k:half] = (strength - penalty) * seen
        for c in range(k):
            block.qkv.weight[2 * width + c, c] = seen
            block.out.weight[2 * half + c, c], block.out.weight[2 * half + k + c, c] = 1.0, -1.0
            model.head.weight[1 + c, 2 * half + c] = 1.0
        model.head.weight[0, :half] = 0.5
        counted = [0.0] * width
        counted[:k], counted[close] = [5.0] * k, -5.0
        idle = [[0.0] * width] * (heads - 1)
        model.encoding.hand_set([counted, *idle], [penalty] + [1.0] * (heads - 1), [0.0] * heads)
    return model.eval()


Weights = Mapping[str, Tensor]


def tensors(network: nn.Module) -> dict[str, Tensor]:
    """All floating-point tensors of ``network`` that are not 0-dimensional, parameters and buffers, by name."""
    named = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {name: value.detach().clone() for name, value in named.items() if value.is_floating_point() and value.dim()}


def descend(
    network: nn.Module,
    loss: Callable[[Callable[..., Tensor], int], Tensor],
    *,
    rate: int | float,
    steps: int,
    relative: bool = False,
) -> dict[str, Tensor]:
    """The weights after ``steps`` of gradient descent from those of ``network``, which itself stays as it is.

    ``loss(call, step)`` is the loss of the network that ``call`` evaluates. A step is w <- w - rate dL/dw for every
    entry. With ``relative`` it is taken in the coordinates v of w = w_0 (1 + v), in which every weight has size 1 and
    entries that are 0 stay 0. Weights that stop being finite are returned as they are.

    >>> line = nn.Linear(1, 1, bias=False); _ = nn.init.constant_(line.weight, 3.0)
    >>> loss = lambda call, step: call(torch.ones(1, 1)).sum()
    >>> [descend(line, loss, rate=0.5, steps=1, relative=r)["weight"].item() for r in (False, True)]
    [2.5, -1.5]
    """
    require(rate > 0, "rate", rate, "a positive number")
    start = tensors(network)
    size = {name: value if relative else torch.ones_like(value) for name, value in start.items()}
    moved = {name: torch.zeros_like(value) for name, value in start.items()}
    for step in range(steps):
        leaves = {name: value.requires_grad_() for name, value in moved.items()}
        weights = {name: start[name] + size[name] * leaves[name] for name in start}
        value = loss(lambda *inputs, now=weights: torch.func.functional_call(network, now, inputs), step)
        slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        with torch.no_grad():
            moved = {
                name: leaf.detach() if slope is None else leaf.detach() - rate * slope
                for (name, leaf), slope in zip(leaves.items(), slopes, strict=True)
            }
        if not all(each.isfinite().all() for each in moved.values()):
            break
    return {name: start[name] + size[name] * moved[name] for name in start}
