"""Mistakes about where windows begin and end, and about those that hold nothing."""

from __future__ import annotations

from tests.mutation.mutant import (
    ENDINGS,
    LOGGING,
    SCHEDULES,
    SHORT_WINDOW,
    SKIPS,
    STEPS,
    WEIGHTS,
    WINDOWS,
    Mutant,
)

BOUNDARY = [
    Mutant(
        "windows are counted from batch 0",
        "window.py",
        "return int.__mod__(count - self.first, self)",
        "return int.__mod__(count, self)",
        (SCHEDULES + "test_schedule_that_changes_inside_an_epoch_steps_where_it_says",),
    ),
    Mutant(
        "windows are one micro-batch too long",
        "window.py",
        "return reached >= window.target",
        "return reached > window.target",
        (SHORT_WINDOW,),
    ),
    Mutant(
        "an epoch's end comes one micro-batch early",
        "window.py",
        "return limit is not None and limit <= 1",
        "return limit is not None and limit <= 2",
        (SHORT_WINDOW,),
    ),
    Mutant(
        "samples of a window are those of its last micro-batch",
        "window.py",
        "window.num_counted += count",
        "window.num_counted = count",
        (SCHEDULES + "test_unit_samples_closes_with_the_batch_that_reaches_the_target",),
    ),
    Mutant(
        "carried windows forget where they began",
        "endings.py",
        "accumulator.window.first = -accumulator.window.num_micro_batches",
        "pass",
        (WINDOWS + "test_epoch_end_carry_closes_windows_wherever_they_are_full",),
    ),
    Mutant(
        "a window open at the end of an epoch is not flushed",
        "callback.py",
        'if self.rules.epoch_end == "flush":\n            self._flush(trainer)',
        'if self.rules.epoch_end == "flush":\n            pass',
        (ENDINGS + "test_loader_that_yields_fewer_batches_than_it_says_loses_none",),
    ),
    Mutant(
        "a window open at the end of training is not flushed",
        "callback.py",
        "if self.accumulator is not None and self.state.window is not None:\n            self._flush(trainer)",
        "pass",
        (ENDINGS + "test_stop_inside_a_window_steps_with_what_it_holds",),
    ),
    Mutant(
        "a dropped window is kept",
        "endings.py",
        "    state.num_dropped_windows += 1\n    accumulator.forget()\n",
        "    state.num_dropped_windows += 1\n",
        (WINDOWS + "test_epoch_end_drop_leaves_nothing_for_the_next_window",),
    ),
    Mutant(
        "schedulers do not step after a flush",
        "_lightning.py",
        '    epoch_loop.update_lr_schedulers("step", update_plateau_schedulers=False)\n',
        "",
        (ENDINGS + "test_stop_inside_a_window_steps_with_what_it_holds",),
    ),
    Mutant(
        "steps are foreseen as if every epoch flushed",
        "forecast.py",
        "epoch_end=rules.epoch_end,",
        "",
        (STEPS + "test_steps_known_before_training_are_those_that_training_makes",),
    ),
]

NOTHING = [
    Mutant(
        "a micro-batch of weight zero goes backward",
        "accumulator.py",
        "        if not weights or not weights[0] or (len(",
        "        if not weights or (len(",
        (WEIGHTS + "test_micro_batch_of_weight_zero_with_any_loss_contributes_nothing",),
    ),
    Mutant(
        "a window without items steps",
        "accumulator.py",
        "        if not any(weights):\n            self._end_empty(num_samples)\n            return False\n",
        "        if not any(weights):\n            self._end_empty(num_samples)\n",
        (SKIPS + "test_window_with_skipped_batches_is_the_mean_of_the_others",),
    ),
    Mutant(
        "a window without items counts as a step",
        "accumulator.py",
        "        _lightning.uncount_optimizer_step(self.trainer)\n",
        "",
        (SKIPS + "test_window_with_skipped_batches_is_the_mean_of_the_others",),
    ),
    Mutant(
        "schedulers step after a window without items",
        "accumulator.py",
        "        self.show(Window(window.num_micro_batches + 1, window.first))\n        self.forget()\n",
        "        self.forget()\n",
        (SKIPS + "test_window_with_skipped_batches_is_the_mean_of_the_others",),
    ),
    Mutant(
        "a window without items is not forgotten",
        "state.py",
        "        self.weights = _zeros()\n        self.num_window_samples",
        "        self.num_window_samples",
        (SHORT_WINDOW,),
    ),
    Mutant(
        "a batch that the loader left out takes no place",
        "strategy.py",
        "if accumulator is not None and (batch is None or accumulator.meter.counts_early):",
        "if accumulator is not None and batch is not None and accumulator.meter.counts_early:",
        (ENDINGS + "test_loader_that_yields_nothing_counts_in_the_window_and_weighs_nothing",),
    ),
    Mutant(
        "losses without weight enter the mean",
        "gradients/losses.py",
        "            if not weights[term]:\n                continue\n",
        "",
        (LOGGING + "test_logged_items_are_the_weight",),
    ),
]
