"""The mean loss of a window, kept without waiting for a device at any micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_accum.weighting import MAX_TERMS


class WindowLosses:
    """The losses of the open window's micro-batches, for each loss term.

    Args:
        device: where the losses lie.

    Example:
        >>> losses = WindowLosses(torch.device("cpu"))
        >>> losses.add([torch.tensor(1.0)], [3.0])
        >>> losses.add([torch.tensor(5.0)], [1.0])
        >>> losses.mean(losses.sums(), [4.0]).item()
        2.0
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._losses: list[list[Tensor]] = [[] for _ in range(MAX_TERMS)]
        self._weights: list[list[float]] = [[] for _ in range(MAX_TERMS)]

    def add(self, losses: Sequence[Tensor], weights: Sequence[float]) -> None:
        """Remember the losses of a micro-batch; one without weight is left out, whatever its value."""
        for term, loss in enumerate(losses):
            if weights[term]:
                self._losses[term].append(loss.detach())
                self._weights[term].append(weights[term])

    def sums(self) -> Tensor:
        """Return ``sum_i( w_i * l_i )`` of each term, of shape ``(MAX_TERMS,)``, on the losses' device."""
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        sums = torch.zeros(MAX_TERMS, dtype=dtype, device=self.device)
        for term, losses in enumerate(self._losses):
            if losses:
                values = torch.stack([loss.reshape(()) for loss in losses]).to(dtype)
                weights = self._weights[term]
                is_equal = weights.count(weights[0]) == len(weights)
                factor = weights[0] if is_equal else torch.tensor(weights, dtype=dtype, device=self.device)
                sums[term] = (values * factor).sum()
        return sums

    @staticmethod
    def mean(sums: Tensor, totals: Sequence[float]) -> Tensor:
        """Return the window's mean loss, a 0-d float32 tensor: the sum over terms of each term's mean.

        Args:
            sums: what :meth:`sums` returned, or its sum over ranks.
            totals: the total weight of each term.
        """
        means = [sums[term] / total for term, total in enumerate(totals) if total]
        return torch.stack(means).sum().float()

    def clear(self) -> None:
        """Forget all losses."""
        for losses, weights in zip(self._losses, self._weights, strict=True):
            losses.clear()
            weights.clear()
