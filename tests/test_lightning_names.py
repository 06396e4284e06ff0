"""The private names of Lightning that `_lightning.py` uses: each test fails when upstream changes one."""

import inspect

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer import call

from lightning_accum import _lightning
from tests.harness import make_trainer


class Probe(pl.Callback):
    """Reads the private names at the moments at which the package reads them."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool, tuple[int, bool]]] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        place = _lightning.place_of_next_batch(trainer)
        self.seen.append((_lightning.num_ready_batches(trainer), _lightning.is_last_batch_of_epoch(trainer), place))


def fit(callback: pl.Callback, **options) -> pl.Trainer:
    trainer = make_trainer([callback], limit_train_batches=3, max_epochs=1, **options)
    trainer.fit(BoringModel())
    return trainer


def test_progress_names_tell_the_place_in_the_epoch() -> None:
    probe = Probe()
    fit(probe)
    assert [(ready, last) for ready, last, _ in probe.seen] == [(1, False), (2, False), (3, True)]
    assert [place[0] for _, _, place in probe.seen] == [1, 2, 3]


def test_step_outside_batch_goes_through_the_whole_step_and_counts() -> None:
    class Steps(pl.Callback):
        hooks = 0

        def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
            self.hooks += 1

        def on_train_epoch_end(self, trainer, pl_module) -> None:
            pl_module.layer.weight.grad = torch.ones_like(pl_module.layer.weight)
            _lightning.step_outside_batch(trainer, torch.zeros(()))

    steps = Steps()
    assert fit(steps).global_step == steps.hooks == 4


def test_uncount_optimizer_step_takes_one_back() -> None:
    class Uncounts(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module) -> None:
            _lightning.uncount_optimizer_step(trainer)

    assert fit(Uncounts()).global_step == 2


def test_step_schedulers_outside_batch_moves_what_loggers_count() -> None:
    class Moves(pl.Callback):
        before = after = 0

        def on_train_epoch_end(self, trainer, pl_module) -> None:
            self.before = trainer.fit_loop.epoch_loop._batches_that_stepped
            _lightning.step_schedulers_outside_batch(trainer)
            self.after = trainer.fit_loop.epoch_loop._batches_that_stepped

    moves = Moves()
    fit(moves)
    assert moves.after == moves.before + 1


def test_show_values_reaches_callback_metrics_and_the_bar() -> None:
    class Shows(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
            _lightning.show_values(trainer, {"mine": torch.tensor(2.0)}, in_bar=["mine"])

    trainer = fit(Shows())
    assert trainer.callback_metrics["mine"] == trainer.progress_bar_metrics["mine"] == 2.0


def test_adopted_trainer_counts_by_itself_until_released() -> None:
    trainer = make_trainer([])
    _lightning.adopt_trainer(trainer, lambda: 7)
    assert trainer.estimated_stepping_batches == 7 and isinstance(trainer, pl.Trainer)
    _lightning.release_trainer(trainer)
    assert type(trainer) is pl.Trainer and "_count_steps" not in vars(trainer)


def test_move_callback_returns_where_it_was() -> None:
    first, second = Probe(), Probe()
    trainer = make_trainer([first, second])
    where = _lightning.move_callback(trainer, second, 0)
    assert _lightning.callbacks_of(trainer)[0] is second
    _lightning.move_callback(trainer, second, where)
    assert _lightning.callbacks_of(trainer)[:2] == [first, second]


@pytest.mark.parametrize("is_skipped", [True, False])
def test_watch_skipped_batches_calls_back_and_leaves_no_trace(is_skipped) -> None:
    class Skips(BoringModel):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if is_skipped else None

    module, calls = Skips(), []
    undo = _lightning.watch_skipped_batches(module, lambda: calls.append(1))
    module.on_train_batch_start(None, 0)
    undo()
    assert len(calls) == is_skipped and "on_train_batch_start" not in vars(module)


def test_lightning_still_reads_the_factor_where_the_window_answers() -> None:
    zero_grad = inspect.getsource(_AutomaticOptimization._make_zero_grad_fn)
    assert "batch_idx % self.trainer.accumulate_grad_batches == 0" in zero_grad
    reached = inspect.getsource(_TrainingEpochLoop._accumulated_batches_reached)
    assert "ready % self.trainer.accumulate_grad_batches == 0" in reached


def test_lightning_still_asks_the_strategy_whether_the_last_batch_steps() -> None:
    assert "strategy.handles_gradient_accumulation" in inspect.getsource(_TrainingEpochLoop._should_accumulate)
    assert "strategy.handles_gradient_accumulation" in inspect.getsource(_AutomaticOptimization.run)


def test_lightning_still_hands_a_missing_batch_to_the_strategy_before_counting_it() -> None:
    source = inspect.getsource(_TrainingEpochLoop.advance)
    assert source.index('"batch_to_device"') < source.index("self.batch_progress.increment_ready()")
    assert source.index("increment_ready()") < source.index("if batch is None")


def test_lightning_still_gives_callbacks_a_method_log() -> None:
    # which is why the callback's own setting has another name
    from lightning.pytorch.trainer.connectors.callback_connector import _CallbackConnector

    assert "callback.log = " in inspect.getsource(_CallbackConnector._attach_model_logging_functions)
    assert callable(call._call_callback_hooks)
