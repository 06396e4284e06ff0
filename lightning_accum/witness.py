"""Noticing what others do to an open window: set the trainer's factor, or clear the gradients."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch.nn import Parameter

from lightning_accum import _lightning
from lightning_accum.schedules import Schedule
from lightning_accum.window import OpenWindow


class GradientWitness:
    """One parameter whose gradient must stay there from a window's first backward to its last.

    Args:
        module: the module that is trained.
    """

    def __init__(self, module: pl.LightningModule) -> None:
        self._module = module
        self._parameter: Parameter | None = None
        self._has_seen = False

    def open(self) -> None:
        """Begin a new window, whose gradients are not there yet."""
        self._has_seen = False

    def see(self) -> None:
        """Choose the parameter, after the window's first backward."""
        if self._has_seen:
            return
        self._has_seen = True
        if self._parameter is None or self._parameter.grad is None:
            parameters = self._module.parameters()
            self._parameter = next((parameter for parameter in parameters if parameter.grad is not None), None)

    def check(self, window: OpenWindow) -> None:
        """Tell if somebody cleared the gradients of the open window: what they held cannot be had back."""
        if self._has_seen and self._parameter is not None and self._parameter.grad is None:
            rank_zero_warn(
                "Gradients were cleared (zero_grad) inside a window, before its micro-batch "
                f"{window.num_micro_batches} of {window.factor}: what they held is lost, and the step is wrong."
            )
            self._has_seen = False


def tell_assigned_factor(trainer: pl.Trainer, schedule: Schedule) -> None:
    """Tell that a factor set from outside is overruled; weight averaging sets it for an epoch of its own."""
    if any(isinstance(callback, StochasticWeightAveraging) for callback in _lightning.callbacks_of(trainer)):
        return
    rank_zero_warn(
        f"trainer.accumulate_grad_batches was set to {trainer.accumulate_grad_batches!r} from outside; "
        f"GradientAccumulation overrules it by its schedule {schedule}. Change the schedule instead."
    )
