"""Schedules: how much a window shall hold, as a function of the progress of training. Pure: no torch, no Lightning."""

from lightning_accum.schedules.base import Schedule, check_value
from lightning_accum.schedules.parse import as_schedule
from lightning_accum.schedules.ramps import CosineRamp, ExponentialRamp, LinearRamp, Ramp
from lightning_accum.schedules.sequence import Sequence
from lightning_accum.schedules.shapes import Constant, FromCallable, PerEpoch, Stages

__all__ = [
    "Constant",
    "CosineRamp",
    "ExponentialRamp",
    "FromCallable",
    "LinearRamp",
    "PerEpoch",
    "Ramp",
    "Schedule",
    "Sequence",
    "Stages",
    "as_schedule",
    "check_value",
]
