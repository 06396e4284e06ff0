"""The callback that a user adds: ``Trainer(callbacks=[GradientAccumulation(...)])``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from typing_extensions import override

from lightning_accum import _lightning
from lightning_accum.accumulator import Accumulator, ClosedWindow
from lightning_accum.checks import check_trainer
from lightning_accum.counting import Weight, as_weight
from lightning_accum.endings import carry, drop, flush, skip_begun_batch
from lightning_accum.errors import expected
from lightning_accum.forecast import count_optimizer_steps
from lightning_accum.gradients.sync import Ranks
from lightning_accum.microbatch.measure import BatchMeter
from lightning_accum.progress import Progress
from lightning_accum.schedules import Constant, Schedule, as_schedule
from lightning_accum.state import AccumulationState
from lightning_accum.strategy import AccumulationMixin, adopt_strategy, release_strategy
from lightning_accum.window import Divisor, EpochEnd, Unit, Window, WindowRules, check_choice


class GradientAccumulation(Callback):
    """Makes one optimizer step exactly the step that one large batch would have made.

    Args:
        schedule: how much a window holds: a number, Lightning's dict ``{0: 1, 4: 8}`` (keys are epochs, counted from
            0), a text such as ``"0:1,4:8"``, a :class:`~lightning_accum.Schedule`, or a callable of
            :class:`~lightning_accum.Progress`. Default: the trainer's ``accumulate_grad_batches``.
        unit: what that number counts: ``"micro_batches"`` on each rank, or ``"samples"`` or ``"items"`` over all ranks.
        weight: the items that a micro-batch's mean loss is a mean over: ``"samples"``, ``"tokens"``, ``"pixels"``,
            ``"equal"``, ``"returned"``, a :class:`~lightning_accum.Weight`, or a callable of (batch, outputs). A
            ``training_step`` that returns ``{"loss": ..., "num_items": ...}`` says it itself.
        epoch_end: what becomes of a short window at the end of an epoch: ``"flush"`` steps with what it holds,
            ``"carry"`` continues it in the next epoch, ``"drop"`` throws it away.
        divisor: ``"actual"`` divides a short window by what it holds; ``"planned"`` by what was planned, which makes
            its step shorter.
        log: whether to log the window's mean loss, factor, effective batch size and items once an optimizer step.
        log_prefix: what the names of logged values begin with.
        progress_bar: whether to show the mean loss and the factor in the progress bar.

    Raises:
        ConfigError: for settings that cannot be used, here or when ``fit`` begins.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> callback = GradientAccumulation({0: 1, 1: 4}, weight="equal")
        >>> trainer = Trainer(
        ...     callbacks=[callback], max_epochs=2, limit_train_batches=10, limit_val_batches=0, logger=False,
        ...     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        ... )
        >>> trainer.fit(BoringModel())
        >>> trainer.global_step
        13
    """

    def __init__(
        self,
        schedule: int | str | dict[int, int] | list[Any] | Schedule | Callable[[Progress], float] | None = None,
        *,
        unit: Unit = "micro_batches",
        weight: str | Weight | Callable[[Any, Any], Any] = "samples",
        epoch_end: EpochEnd = "flush",
        divisor: Divisor = "actual",
        log: bool = True,
        log_prefix: str = "accumulation",
        progress_bar: bool = True,
    ) -> None:
        if schedule is None and unit != "micro_batches":
            raise expected(f"a schedule, as unit={unit!r} was given", schedule, "GradientAccumulation(schedule=...)")
        self.rules = WindowRules(Constant(1) if schedule is None else as_schedule(schedule), unit, epoch_end)
        self.weight = as_weight(weight)
        check_choice(divisor, Divisor, "divisor")
        self.divisor = divisor
        self.is_logged = log  # the trainer gives every callback a method `log`
        self.log_prefix = log_prefix
        self.progress_bar = progress_bar
        self.state = AccumulationState()
        self.accumulator: Accumulator | None = None
        self._takes_trainers_factor = schedule is None
        self._restored = False
        self._is_fitting = True
        self._factor_before: int | None = None
        self._position = 0
        self._unwatch: Callable[[], Any] | None = None

    # ------------------------------------------------------------------ set up, and leave no trace

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._is_fitting = stage == "fit"
        if stage != "fit":
            return
        if self._takes_trainers_factor:
            factor = Constant(int(trainer.accumulate_grad_batches))
            self.rules = WindowRules(factor, self.rules.unit, self.rules.epoch_end)
        check_trainer(trainer, self, self.rules.schedule, self.weight, self.rules.unit)
        self._factor_before = trainer.accumulate_grad_batches
        ranks = Ranks(trainer.world_size, trainer.strategy.root_device)
        meter = BatchMeter(
            self.weight,
            ranks,
            trainer,
            short_batch_ends_window=self.rules.epoch_end == "flush",
            needs_samples="samples" in (self.rules.schedule.units or ()),
        )
        accumulator = self.accumulator = Accumulator(trainer, self.rules, meter, self.divisor, self.state)
        adopt_strategy(trainer.strategy, accumulator)
        _lightning.adopt_trainer(trainer, lambda: count_optimizer_steps(trainer, self.rules))
        # first of all callbacks, so that every other one sees the user's own loss and the finished window
        self._unwatch = _lightning.watch_skipped_batches(pl_module, lambda: skip_begun_batch(accumulator))
        self._position = _lightning.move_callback(trainer, self, 0)

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._release(trainer)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._release(trainer)

    def _release(self, trainer: pl.Trainer) -> None:
        """Give the trainer back as it was found."""
        if self.accumulator is None:
            return
        self.accumulator = None
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        release_strategy(trainer.strategy)
        _lightning.release_trainer(trainer)
        _lightning.move_callback(trainer, self, self._position)
        trainer.accumulate_grad_batches = self._factor_before  # type: ignore[assignment]

    # ------------------------------------------------------------------ training

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        accumulator = self.accumulator
        assert accumulator is not None
        restored, self._restored = self._restored, False
        if not restored and self.state.num_optimizer_steps != trainer.global_step or trainer.global_step == 0:
            self._assign(self.state if restored else self._state_of(trainer))
        ready = _lightning.num_ready_batches(trainer)
        window = self.state.window
        if window is None:
            accumulator.show(Window(1, ready))
            return
        rank_zero_warn(
            f"Training goes on inside a window of which {window.num_micro_batches} of {window.factor} micro-batches "
            "were seen, but their gradients were not saved: the window starts anew and divides by what it then holds."
        )
        accumulator.show(Window(window.num_micro_batches + 1, ready - window.num_micro_batches))
        self.state.clear_window()

    @staticmethod
    def _state_of(trainer: pl.Trainer) -> AccumulationState:
        """Return the state of a training that went on without this callback: what its trainer counted."""
        num_micro_steps = _lightning.num_total_batches(trainer)
        if num_micro_steps:
            rank_zero_warn(
                f"Training goes on after {trainer.global_step} optimizer steps that GradientAccumulation did not see: "
                "a schedule sees these steps and their micro-batches, but samples and items are counted from 0."
            )
        return AccumulationState(num_optimizer_steps=trainer.global_step, num_micro_steps=num_micro_steps)

    def _assign(self, state: AccumulationState) -> None:
        self.state = state
        if self.accumulator is not None:
            self.accumulator.state = state

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        assert self.accumulator is not None
        self.accumulator.begin(batch, batch_idx, _lightning.is_last_batch_of_epoch(trainer))

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        accumulator = self.accumulator
        assert accumulator is not None
        step = accumulator.step_output
        if step is not None and isinstance(outputs, dict):
            if step.for_user is None:
                outputs.clear()
            else:
                outputs["loss"] = step.for_user
        if accumulator.closed is not None:
            self._show(trainer, accumulator.closed)

    def _show(self, trainer: pl.Trainer, closed: ClosedWindow) -> None:
        """Show a closed window where values are looked for: callbacks, progress bar, loggers."""
        if not self.is_logged:
            return
        prefix = self.log_prefix
        values = {
            f"{prefix}/loss": closed.mean_loss,
            f"{prefix}/factor": torch.tensor(float(closed.num_micro_batches)),
            f"{prefix}/num_items": torch.tensor(float(closed.num_items)),
        }
        in_bar = ("loss", "factor") if self.progress_bar else ()
        if closed.num_samples == closed.num_samples:
            values[f"{prefix}/effective_batch_size"] = torch.tensor(float(closed.num_samples))
        _lightning.show_values(trainer, values, in_bar=[f"{prefix}/{name}" for name in in_bar])

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        accumulator, window = self.accumulator, self.state.window
        if accumulator is None or window is None:
            return
        if self.rules.epoch_end == "flush":
            self._flush(trainer)
        elif self.rules.epoch_end == "carry":
            carry(accumulator)
        else:
            rank_zero_warn(
                f"A window of {window.num_micro_batches} of {window.factor} micro-batches at the end of epoch "
                f"{trainer.current_epoch} was dropped (epoch_end='drop'); {self.state.num_dropped_windows + 1} so far."
            )
            drop(accumulator)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.accumulator is not None and self.state.window is not None:
            self._flush(trainer)

    def _flush(self, trainer: pl.Trainer) -> None:
        """Make the step that no batch made, and log it, as nothing else will."""
        assert self.accumulator is not None
        flush(self.accumulator)
        if self.accumulator.closed is not None:
            self._show(trainer, self.accumulator.closed)
            _lightning.step_schedulers_outside_batch(trainer)

    @override
    def on_before_zero_grad(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        window = self.state.window
        if window is not None and window.num_micro_batches > 1:
            rank_zero_warn(
                f"Gradients are set to zero inside a window, after {window.num_micro_batches - 1} of {window.factor} "
                "micro-batches: what they held is lost."
            )

    # ------------------------------------------------------------------ checkpoints

    @override
    def state_dict(self) -> dict[str, Any]:
        return self.state.to_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._is_fitting:  # a checkpoint that is only tested says nothing about this training
            self._assign(AccumulationState.from_dict(state_dict))
            self._restored = True


def ensure_callback(trainer: pl.Trainer) -> None:
    """Give a trainer whose strategy was chosen by name the callback that does its windows, if it has none."""
    if any(isinstance(callback, GradientAccumulation) for callback in _lightning.callbacks_of(trainer)):
        return
    if not isinstance(trainer.strategy, AccumulationMixin) or trainer.state.fn != "fit":
        return
    callback = GradientAccumulation()
    _lightning.move_callback(trainer, callback, 0)
    rank_zero_info(f"{type(trainer.strategy).__name__} added GradientAccumulation().")
