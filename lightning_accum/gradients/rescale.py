"""Multiplying a window's gradients by one factor, and keeping a valueless micro-batch out of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Parameter


@torch.no_grad()
def scale_gradients(parameters: Iterable[Parameter], factor: float) -> None:
    """Multiply the gradient of each parameter by ``factor``, in place; a factor of exactly 1 touches nothing.

    Example:
        >>> weight = Parameter(torch.ones(2))
        >>> weight.grad = torch.tensor([1.0, 2.0])
        >>> scale_gradients([weight], 0.5)
        >>> weight.grad
        tensor([0.5000, 1.0000])
    """
    if factor == 1.0:
        return
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        grad = parameter.grad
        if grad is None:
            continue
        if grad.layout != torch.strided:
            grad.mul_(factor)
        else:
            alike[grad.device, grad.dtype].append(grad)
    for grads in alike.values():
        torch._foreach_mul_(grads, factor)


@contextmanager
def zeroed_gradients(parameters: Iterable[Parameter]) -> Iterator[None]:
    """Let every gradient computed inside arrive at its parameter as zeros, whatever it is, NaN included.

    A micro-batch without a valid item must still take part in the reduction over ranks, so its backward runs, but
    nothing of it may be added.

    Example:
        >>> weight = Parameter(torch.ones(2))
        >>> with zeroed_gradients([weight]):
        ...     (weight.sum() * float("nan")).backward()
        >>> weight.grad
        tensor([0., 0.])
    """
    handles = [parameter.register_hook(torch.zeros_like) for parameter in parameters if parameter.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
