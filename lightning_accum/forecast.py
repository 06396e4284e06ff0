"""How many optimizer steps a trainer will make: what learning-rate schedules are built from."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from lightning_accum import _lightning
from lightning_accum.errors import ConfigError, expected
from lightning_accum.simulation import simulate_windows
from lightning_accum.window import WindowRules


def count_optimizer_steps(trainer: pl.Trainer, rules: WindowRules) -> float:
    """Return the optimizer steps of the whole training, counted by simulating its windows.

    Args:
        trainer: a trainer with its module attached; its training loader is made now if it was not yet.
        rules: when windows open and close.

    Returns:
        The number of steps; infinity for a training without any limit.

    Raises:
        ConfigError: where they cannot be counted in advance and no ``max_steps`` says them: a loader without a length,
            windows in items, a schedule that looks at items or adapts.
    """
    max_steps = _lightning.max_steps_of(trainer)
    if trainer.max_epochs == -1:
        return float("inf") if max_steps is None else max_steps
    if trainer.train_dataloader is None:
        rank_zero_info("Loading the training data to count the optimizer steps.")
    loader = _lightning.load_train_dataloader(trainer)
    num_batches = trainer.num_training_batches
    if num_batches == 0 or trainer.limit_train_batches == 0:
        return 0
    reason = _why_unknown(rules, num_batches)
    if reason is not None:
        if max_steps is not None:
            return max_steps
        raise ConfigError(
            f"expected optimizer steps that can be counted in advance, but got {reason} (in "
            "trainer.estimated_stepping_batches). Give Trainer(max_steps=...): training then ends after that many."
        )
    assert trainer.max_epochs is not None
    batch_size, last_batch_size = _batch_sizes(loader, int(num_batches), rules)
    windows = simulate_windows(
        rules.schedule,
        batches_per_epoch=int(num_batches),
        num_epochs=max(trainer.max_epochs, 1),
        batch_size=batch_size,
        last_batch_size=last_batch_size,
        world_size=trainer.world_size,
        unit=rules.unit,
        epoch_end=rules.epoch_end,
        max_steps=max_steps,
    )
    return sum(window.stepped for window in windows)


def _why_unknown(rules: WindowRules, num_batches: float) -> str | None:
    if num_batches == float("inf"):
        return "a training loader without a length"
    if rules.unit == "items":
        return "windows that close by items"
    units = rules.schedule.units
    if not rules.schedule.is_predictable or (units is not None and "items" in units):
        return f"the schedule {rules.schedule}, which depends on more than the number of batches"
    return None


def _batch_sizes(loader: Any, num_batches: int, rules: WindowRules) -> tuple[int, int]:
    """Return the samples of a micro-batch and of an epoch's last one, as the loader says."""
    batch_size = getattr(loader, "batch_size", None)
    units = rules.schedule.units
    if not isinstance(batch_size, int):
        if rules.unit == "samples" or (units is not None and "samples" in units):
            raise expected("a loader with a batch_size", type(loader).__name__, "steps counted in samples", "Use one.")
        return 1, 1
    sampler = getattr(loader, "sampler", None)
    try:
        num_samples = len(sampler)  # type: ignore[arg-type]
    except TypeError:
        return batch_size, batch_size
    is_whole = getattr(loader, "drop_last", False) or num_batches * batch_size <= num_samples
    return batch_size, batch_size if is_whole else num_samples - (num_batches - 1) * batch_size
