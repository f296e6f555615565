"""Muon: momentum for matrices, orthogonalized before it is applied, so that all directions learn at the same speed.

Keller Jordan, 2024 (https://kellerjordan.github.io/posts/muon/). Updates have the size of AdamW's, so that both share a
learning rate (arXiv 2502.16982). Embeddings, norms and scales are left to AdamW. N matrices of one shape [O, I].
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# Jordan's coefficients: five steps of this polynomial bring singular values near 1, fast but not exactly.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
RMS = 0.2  # of an update before the learning rate; typical for AdamW


class Muon(torch.optim.Optimizer):
    """Optimizer for matrices, and for experts: three-dimensional parameters with one matrix per expert.

    If `found_inf` is a nonzero tensor, a step leaves the weights unchanged.
    """

    found_inf: Tensor | None = None

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        keep = 1.0 if self.found_inf is None else 1 - self.found_inf
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        state["momentum"] = torch.zeros_like(parameter)
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                momenta = [self.state[parameter]["momentum"] for parameter in parameters]
                # A gradient that is not finite must not enter the momentum.
                grads = [torch.nan_to_num(p.grad, 0.0, 0.0, 0.0) for p in parameters if p.grad is not None]
                torch._foreach_mul_(momenta, group["momentum"])
                torch._foreach_add_(momenta, grads)
                ahead = torch._foreach_add(grads, torch._foreach_mul(momenta, group["momentum"]))
                update_NOI = orthogonal(torch.stack(list(ahead)).flatten(0, -3))
                update_NOI *= RMS * max(shape[-2:]) ** 0.5 * group["lr"] * keep
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"] * keep)
                updates = update_NOI.to(parameters[0].dtype).view(len(parameters), *shape).unbind()
                torch._foreach_sub_(parameters, list(updates))


def orthogonal(matrix_NOI: Tensor) -> Tensor:
    """Return nearly the closest matrices with all singular values 1, by Newton–Schulz iteration."""
    a, b, c = COEFFICIENTS
    x = matrix_NOI.to(torch.bfloat16 if matrix_NOI.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
