"""AdamW with clipped gradients, over one long vector: what training takes its steps with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BETAS, CLIP = (0.9, 0.98), 1.0


class Optimiser:
    """AdamW over all parameters of ``model`` laid out as one vector w: with gradient g, rate r and decay d,

    $$ m <- b_1 m + (1 - b_1) g,  s <- b_2 s + (1 - b_2) g^2,  w <- (1 - r d) w - r m' / (sqrt(s') + 1e-8), $$

    m' and s' being m and s divided by 1 - b^t. While it lives, the model's parameters and gradients are views of w, g.
    torch's own AdamW takes the same steps, but loads torch's compiler first, and that takes as long as loading torch.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.parameters, self.decay, self.count = list(model.parameters()), decay, 0
        self.vector = torch.cat([p.detach().flatten() for p in self.parameters])
        self.grad, self.mean, self.square = (torch.zeros_like(self.vector) for _ in range(3))
        sizes = [p.numel() for p in self.parameters]
        for p, value, grad in zip(self.parameters, self.vector.split(sizes), self.grad.split(sizes), strict=True):
            p.data, p.grad = value.view_as(p), grad.view_as(p)

    def step(self, loss: Tensor, rate: float) -> None:
        """Go down the gradient of ``loss``, clipped to norm 1, at the given learning rate."""
        self.grad.zero_()
        loss.backward()
        self.grad.mul_((CLIP / (torch.linalg.vector_norm(self.grad) + 1e-6)).clamp(max=1))
        self.count += 1
        first, second = (1 - beta**self.count for beta in BETAS)
        self.mean.lerp_(self.grad, 1 - BETAS[0])
        self.square.mul_(BETAS[1]).addcmul_(self.grad, self.grad, value=1 - BETAS[1])
        size = (self.square / second).sqrt_().add_(1e-8)
        self.vector.mul_(1 - rate * self.decay).addcdiv_(self.mean, size, value=-rate / first)

    def release(self) -> None:
        """Give the model parameters of its own again, without gradients."""
        for p in self.parameters:
            p.data, p.grad = p.detach().clone(), None

    def tensors(self) -> dict[str, Tensor]:
        """What decides the next step, beside the count of steps."""
        return {"vector": self.vector, "mean": self.mean, "square": self.square}
