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
        >>> losses.mean([4.0]).item()
        2.0
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._losses: dict[int, list[Tensor]] = {}
        self._weights: dict[int, list[float]] = {}

    def add(self, losses: Sequence[Tensor], weights: Sequence[float]) -> None:
        """Remember the losses of a micro-batch; one without weight is left out, whatever its value."""
        for term, loss in enumerate(losses):
            if not weights[term]:
                continue
            # a copy: the user may add to the loss in place, and a captured graph uses its memory again
            value = loss.detach().clone().reshape(())
            if term in self._losses:
                self._losses[term].append(value)
                self._weights[term].append(weights[term])
            else:
                self._losses[term], self._weights[term] = [value], [weights[term]]

    def sums(self) -> Tensor:
        """Return ``sum_i( w_i * l_i )`` of each term, of shape ``(MAX_TERMS,)``, on the losses' device."""
        sums = torch.zeros(MAX_TERMS, dtype=self._dtype, device=self.device)
        for term in self._losses:
            sums[term] = self._sum(term)
        return sums

    def _sum(self, term: int) -> Tensor:
        losses, weights = self._losses[term], self._weights[term]
        values = torch.stack(losses)
        if values.dtype != self._dtype:
            values = values.to(self._dtype)
        if weights.count(weights[0]) == len(weights):
            return values.sum() * weights[0]
        return values @ torch.tensor(weights, dtype=self._dtype, device=self.device)

    def mean(self, totals: Sequence[float], sums: Tensor | None = None) -> Tensor:
        """Return the window's mean loss, a 0-d float32 tensor: the sum over terms of each term's mean.

        Args:
            totals: the total weight of each term.
            sums: what :meth:`sums` returned, summed over ranks; ``None`` on a single rank.
        """
        if sums is None:
            means = [self._sum(term) / totals[term] for term in self._losses]
            return (means[0] if len(means) == 1 else torch.stack(means).sum()).float()
        return torch.stack([sums[term] / total for term, total in enumerate(totals) if total]).sum().float()

    def clear(self) -> None:
        """Forget all losses."""
        self._losses, self._weights = {}, {}
