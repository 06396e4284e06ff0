"""Gradients of several loss terms, each a mean over items of its own.

Only the first term's gradient can be summed in ``.grad``: the others are divided by other totals, known at the
window's end. Each of them costs a backward of its own and one buffer as large as the gradients, while a window is open.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_accum.gradients.sync import Ranks


class TermGradients:
    """The gradient sums of the loss terms after the first, for the open window.

    Args:
        parameters: the trained parameters, in an order that all ranks share.

    Example:
        >>> weight = Parameter(torch.ones(2))
        >>> terms = TermGradients([weight])
        >>> terms.add(1, 3 * weight.sum())
        >>> terms.apply(1, 0.5, Ranks(1, torch.device("cpu")))
        >>> weight.grad
        tensor([1.5000, 1.5000])
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = list(parameters)
        self._sums: dict[int, list[Tensor | None]] = {}

    def add(self, term: int, loss: Tensor) -> None:
        """Add the gradient of ``loss`` to the sum of ``term``; its graph is kept for the terms that follow."""
        sums = self._sums.setdefault(term, [None] * len(self.parameters))
        for position, grad in enumerate(self._gradients(loss)):
            if grad is not None:
                held = sums[position]
                sums[position] = grad.clone() if held is None else held.add_(grad)

    def add_to_grad(self, loss: Tensor) -> None:
        """Add the gradient of ``loss`` to ``.grad`` without any hook of a backward; its graph is kept."""
        for parameter, grad in zip(self.parameters, self._gradients(loss), strict=True):
            if grad is not None:
                parameter.grad = grad.clone() if parameter.grad is None else parameter.grad.add_(grad)

    def scale(self, term: int, factor: float) -> None:
        """Multiply the sum of ``term`` by ``factor``."""
        for held in self._sums.get(term, []):
            if held is not None:
                held.mul_(factor)

    def _gradients(self, loss: Tensor) -> list[Tensor | None]:
        # asked anew each time: a parameter may be frozen or unfrozen inside a window
        trained = [parameter.requires_grad for parameter in self.parameters]
        asked = [parameter for parameter in self.parameters if parameter.requires_grad]
        grads = iter(torch.autograd.grad(loss, asked, retain_graph=True, allow_unused=True))
        return [next(grads) if is_trained else None for is_trained in trained]

    @torch.no_grad()
    def apply(self, term: int, factor: float, ranks: Ranks) -> None:
        """Average the sum of ``term`` over ranks and add it ``factor`` times to ``.grad``; all ranks must call this."""
        sums = self._sums.pop(term, [None] * len(self.parameters))
        sums = ranks.average_optional(sums, self.parameters)
        for parameter, held in zip(self.parameters, sums, strict=True):
            if held is None:
                continue
            if parameter.grad is None:
                parameter.grad = held.mul_(factor)
            else:
                parameter.grad.add_(held, alpha=factor)
