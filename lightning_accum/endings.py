"""Windows that end, or go on, elsewhere than at a training batch: a batch left out, training stopped, an epoch over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_accum import _lightning
from lightning_accum.errors import ConfigError
from lightning_accum.window import Window

if TYPE_CHECKING:
    from lightning_accum.accumulator import Accumulator


def skip_missing_batch(accumulator: Accumulator, batch_idx: int, is_last: bool) -> None:
    """Give a batch that the loader left out (``None``) its place in the window, which it may end.

    Raises:
        ConfigError: with more than one rank, where the others would wait for this one.
    """
    if accumulator.ranks.world_size > 1:
        raise ConfigError(
            f"expected a batch on every rank, but got None at batch {batch_idx} on rank "
            f"{accumulator.trainer.global_rank}. Leave out samples in the data set or sampler instead."
        )
    opens = accumulator.state.window is None
    accumulator.begin(None, batch_idx, is_last)
    if opens:
        accumulator.trainer.optimizers[0].zero_grad()
    window = accumulator.window
    if not window.closes:
        return
    # the loop has not counted this batch yet: show it the window one batch earlier while it steps
    accumulator.show(Window(window.num_micro_batches, window.first - 1))
    _lightning.step_outside_batch(accumulator.trainer, _no_loss(accumulator))
    if accumulator.closed is not None:
        accumulator.show(window.as_window())


def skip_begun_batch(accumulator: Accumulator) -> None:
    """Take a micro-batch back that has begun but will not run, as the user skips the rest of the epoch."""
    state, window = accumulator.state, accumulator.window
    window.num_micro_batches -= 1
    window.closes = False
    state.num_micro_steps -= 1
    accumulator.meter.forget_batch()
    accumulator.hold_last_batch(True)
    accumulator.show(Window(window.num_micro_batches + 2, window.first))
    if window.num_micro_batches == 0:
        accumulator.forget()


def flush(accumulator: Accumulator) -> None:
    """Make the step of a window that ended without one: training was stopped, or its loader ended early."""
    window = accumulator.window
    window.closes = True
    accumulator.is_last_batch = accumulator.is_reduced = False
    accumulator.hold_last_batch(False)
    ready = _lightning.num_ready_batches(accumulator.trainer)
    accumulator.show(Window(window.num_micro_batches, ready - window.num_micro_batches))
    _lightning.step_outside_batch(accumulator.trainer, _no_loss(accumulator))


def drop(accumulator: Accumulator) -> None:
    """Throw the open window away; its samples count as seen."""
    state = accumulator.state
    num_samples, *weights = accumulator.ranks.sum([state.num_window_samples, *state.weights])
    state.num_samples += num_samples
    state.num_items += sum(weights)
    state.num_dropped_windows += 1
    accumulator.forget()


def carry(accumulator: Accumulator) -> None:
    """Let the open window go on in the next epoch, whose batches are counted from 0 again."""
    accumulator.window.first = -accumulator.window.num_micro_batches


def _no_loss(accumulator: Accumulator) -> Tensor:
    return torch.zeros((), device=accumulator.ranks.device)
