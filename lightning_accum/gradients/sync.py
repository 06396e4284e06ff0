"""What ranks tell each other about a window: its weight, and gradients that no wrapper reduces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn import Parameter

BUCKET_BYTES = 25 * 2**20
"""Gradients are reduced in pieces of about this size, as DistributedDataParallel does."""


class Ranks:
    """The processes that train together: one scalar sum a window, on the device that their backend uses.

    Args:
        world_size: number of ranks; with one, every method returns what it was given.
        device: where tensors must lie to be reduced.

    Example:
        >>> Ranks(1, torch.device("cpu")).sum([2.0, 3.0])
        [2.0, 3.0]
    """

    def __init__(self, world_size: int, device: torch.device) -> None:
        self.world_size = world_size
        self.device = device

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sum over ranks of each value, equal on all ranks. One collective and one host synchronisation."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Sequence[float]) -> list[float]:
        """Return the maximum over ranks of each value, equal on all ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def sum_with(self, values: Sequence[float], make_tensor: Callable[[], Tensor]) -> tuple[list[float], Tensor | None]:
        """Return the sums over ranks of host values and of a small 1-d tensor, which stays where it is.

        On one rank the tensor is not even made, and ``None`` returned for it.
        """
        if self.world_size == 1:
            return list(values), None
        host = torch.tensor(values, dtype=torch.float64).to(self.device)
        both = torch.cat([host, make_tensor().to(self.device, torch.float64)])
        dist.all_reduce(both)
        return both[: len(values)].tolist(), both[len(values) :]

    def _reduce(self, values: Sequence[float], op: dist.ReduceOp.RedOpType) -> list[float]:
        if self.world_size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64).to(self.device)
        dist.all_reduce(tensor, op)
        result: list[float] = tensor.tolist()
        return result

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Average ``.grad`` over ranks in place, as DistributedDataParallel does in a backward.

        For a window that ended without a synchronising backward.
        """
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        averaged = self.average_optional([parameter.grad for parameter in trained], trained)
        for parameter, grad in zip(trained, averaged, strict=True):
            before = parameter.grad
            if grad is not None and before is not None and before.is_sparse:
                grad = grad.to_sparse(before.sparse_dim())
            parameter.grad = grad

    @torch.no_grad()
    def average_optional(self, tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor | None]:
        """Return tensors averaged over ranks, in place where they exist and are dense.

        One that only some ranks have counts as zero on the others; one that no rank has stays ``None``.
        """
        if self.world_size == 1:
            return list(tensors)
        exists = self.max([float(tensor is not None) for tensor in tensors])
        # ranks touch different rows of a sparse gradient: reduce it dense, and give it back dense
        tensors = [tensor.to_dense() if tensor is not None and tensor.is_sparse else tensor for tensor in tensors]
        filled = [
            torch.zeros_like(other) if tensor is None and exists_somewhere else tensor
            for tensor, other, exists_somewhere in zip(tensors, like, exists, strict=True)
        ]
        self.average([tensor for tensor in filled if tensor is not None])
        return filled

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors over ranks in place, in buckets; all ranks must give the same shapes in the same order."""
        if self.world_size == 1:
            return
        for bucket in _buckets(tensors):
            flat = _flatten_dense_tensors(bucket)
            flat /= self.world_size
            dist.all_reduce(flat)
            for tensor, reduced in zip(bucket, _unflatten_dense_tensors(flat, bucket), strict=True):
                tensor.copy_(reduced)


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    buckets: list[list[Tensor]] = []
    num_bytes = 0
    for tensor in tensors:
        fits = num_bytes + tensor.nbytes <= BUCKET_BYTES
        if buckets and fits and (buckets[-1][0].dtype, buckets[-1][0].device) == (tensor.dtype, tensor.device):
            buckets[-1].append(tensor)
            num_bytes += tensor.nbytes
        else:
            buckets.append([tensor])
            num_bytes = tensor.nbytes
    return buckets
