"""Normalisation layers that treat a micro-batch as they would treat the large batch. Pure: does not know Lightning."""

from lightning_accum.norms.report import Finding, SwapReport
from lightning_accum.norms.swap import GroupNormAct, count_groups, register_norm, swap_norms

__all__ = ["Finding", "GroupNormAct", "SwapReport", "count_groups", "register_norm", "swap_norms"]
