"""Every private name of Lightning that this package touches, each with its reason.

Checked on Lightning 2.4 to 2.6. ``tests/test_lightning_names.py`` fails when one of them changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor


def callbacks_of(trainer: pl.Trainer) -> list[pl.Callback]:
    """Return the trainer's callbacks, an attribute that it sets but does not declare."""
    return trainer.callbacks  # type: ignore[attr-defined, no-any-return]


def move_callback(trainer: pl.Trainer, callback: pl.Callback, position: int) -> int:
    """Put the callback at a position among those of the trainer; return the position where it was."""
    callbacks = callbacks_of(trainer)
    others = [other for other in callbacks if other is not callback]
    # a new list: Lightning may be going through the old one
    trainer.callbacks = [*others[:position], callback, *others[position:]]  # type: ignore[attr-defined]
    return callbacks.index(callback) if callback in callbacks else position


def max_steps_of(trainer: pl.Trainer) -> int | None:
    """Return the optimizer steps after which training ends, ``None`` where Lightning's -1 says that nothing does."""
    return trainer.max_steps if trainer.max_steps > 0 else None


def is_last_batch_of_epoch(trainer: pl.Trainer) -> bool:
    """Return whether the micro-batch in progress is its epoch's last, as far as Lightning knows.

    Private because no public attribute says so for a loader without a length.
    """
    return trainer.fit_loop.epoch_loop._num_ready_batches_reached()


def num_ready_batches(trainer: pl.Trainer) -> int:
    """Return the micro-batches of this epoch that were fetched, the present one included once it has begun."""
    return int(trainer.fit_loop.epoch_loop.batch_progress.current.ready)


def num_total_batches(trainer: pl.Trainer) -> int:
    """Return the micro-batches of the whole training so far."""
    return int(trainer.fit_loop.epoch_loop.batch_progress.total.ready)


def place_of_next_batch(trainer: pl.Trainer) -> tuple[int, bool]:
    """Return the index of a batch that was fetched but not counted yet, and whether it is its epoch's last."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    batch_idx = int(progress.current.ready)
    return batch_idx, progress.is_last_batch or batch_idx + 1 == trainer.num_training_batches


def step_outside_batch(trainer: pl.Trainer, loss: Tensor) -> None:
    """Make an optimizer step as Lightning makes one at a batch, with gradients that are there already.

    Private because the public ``optimizer.step`` would leave out the module's ``optimizer_step`` hook, the precision
    plugin (unscaling, clipping, ``on_before_optimizer_step``) and the count behind ``trainer.global_step``.
    """
    epoch_loop = trainer.fit_loop.epoch_loop
    epoch_loop.automatic_optimization._optimizer_step(epoch_loop.batch_idx, lambda: loss)


def step_schedulers_outside_batch(trainer: pl.Trainer) -> None:
    """Advance the schedulers that step with the optimizer, and the count that loggers step by, after such a step."""
    epoch_loop = trainer.fit_loop.epoch_loop
    epoch_loop.update_lr_schedulers("step", update_plateau_schedulers=False)
    epoch_loop.update_lr_schedulers("step", update_plateau_schedulers=True)
    epoch_loop._batches_that_stepped += 1


def uncount_optimizer_step(trainer: pl.Trainer) -> None:
    """Take back the optimizer step that Lightning is about to count, because none was made.

    Private because ``trainer.global_step`` is derived from these counters, which move whenever the loop reaches the
    optimizer, also if nothing was updated.
    """
    progress = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step
    for counter in (progress.total, progress.current):
        counter.ready -= 1
        counter.completed -= 1


def show_values(trainer: pl.Trainer, values: dict[str, Tensor], in_bar: Collection[str]) -> None:
    """Give an optimizer step's values to callbacks, the progress bar, and (as often as the trainer logs) to loggers.

    Private because the public ``self.log`` takes close to a millisecond a value: more than a micro-batch of a small
    model. Loggers get what ``self.log`` would give them, at the same step.
    """
    connector = trainer._logger_connector
    connector._callback_metrics.update(values)
    shown: dict[str, Any] = {name: values[name] for name in in_bar}
    if trainer.progress_bar_callback is not None:
        shown = {name: float(value) for name, value in shown.items()}
    connector._progress_bar_metrics.update(shown)
    if connector.should_update_logs:
        connector.log_metrics(values)


def watch_skipped_batches(module: pl.LightningModule, on_skip: Callable[[], None]) -> Callable[[], None]:
    """Call ``on_skip`` when the module's ``on_train_batch_start`` returns -1; return what undoes the watching.

    Lightning then leaves the batch and the rest of the epoch out, but advances schedulers as if it had stepped, and
    tells neither callbacks nor the strategy.
    """
    if not is_overridden("on_train_batch_start", module):
        return lambda: None
    original = module.on_train_batch_start

    def watched(*args: Any, **kwargs: Any) -> int | None:
        response = original(*args, **kwargs)
        if response == -1:
            on_skip()
        return response

    module.on_train_batch_start = watched  # type: ignore[method-assign]
    return lambda: module.__dict__.pop("on_train_batch_start", None)


def load_train_dataloader(trainer: pl.Trainer) -> Any:
    """Return the training loader, made now if it was not yet, exactly as ``estimated_stepping_batches`` does."""
    if trainer.train_dataloader is None:
        trainer.fit_loop.setup_data()
    return trainer.train_dataloader


BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks of a module or data module that may change a batch on its way from the loader."""


def changes_batch(trainer: pl.Trainer, hooks: Sequence[str] = BATCH_HOOKS) -> bool:
    """Return whether the module or the data module overrides one of the hooks, and so may change a batch."""
    datamodule = getattr(trainer, "datamodule", None)
    return any(
        is_overridden(hook, trainer.lightning_module)
        or (datamodule is not None and is_overridden(hook, datamodule, pl.LightningDataModule))
        for hook in hooks
    )


def adopt_trainer(trainer: pl.Trainer, count_steps: Callable[[], float]) -> None:
    """Let ``trainer.estimated_stepping_batches`` return ``count_steps()``, by extending the class of this one trainer.

    The property divides by a constant factor and rounds once an epoch, which is wrong as soon as the factor changes;
    nearly every one-cycle or cosine schedule is built from it.
    """
    kind = type(trainer)
    bases = (_CountsSteps,) if kind is pl.Trainer else (_CountsSteps, kind)
    trainer.__class__ = type(kind.__name__, bases, {"_adopted_from": kind})
    trainer._count_steps = count_steps  # type: ignore[attr-defined]


def release_trainer(trainer: pl.Trainer) -> None:
    """Give the trainer its own class back."""
    if isinstance(trainer, _CountsSteps):
        del trainer._count_steps
        trainer.__class__ = trainer._adopted_from  # type: ignore[assignment]


class _CountsSteps(pl.Trainer):
    """The property that replaces Lightning's own."""

    _adopted_from: type[pl.Trainer]
    _count_steps: Callable[[], float]

    @property
    def estimated_stepping_batches(self) -> float:
        """The optimizer steps of the whole training, counted from the schedule."""
        return self._count_steps()
