"""Deliberate small mistakes in the package's source, each with the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass

WINDOWS = "tests/cases/test_windows.py::"
ENDINGS = "tests/cases/test_endings.py::"
WEIGHTS = "tests/cases/test_weights.py::"
SKIPS = "tests/cases/test_skips.py::"
LOGGING = "tests/cases/test_logging.py::"
STEPS = "tests/cases/test_steps.py::"
SCHEDULES = "tests/cases/test_schedules.py::"
IDENTITY = "tests/cases/test_against_lightning.py::"
SETTINGS = "tests/cases/test_configuration.py::"
PROCESSES = "tests/distributed/test_processes.py::"

SHORT_WINDOW = WINDOWS + "test_short_last_window_divides_by_what_it_holds"
SHORT_BATCH = WINDOWS + "test_short_last_batch_weighs_what_it_holds"
TABLE = PROCESSES + "test_training_on_processes_equals_the_real_large_batch"


@dataclass(frozen=True)
class Mutant:
    """One mistake: ``old`` stands exactly once in ``file`` and becomes ``new``; one of ``killers`` must then fail.

    ``is_slow`` leaves it out of the selection that runs by default.
    """

    name: str
    file: str
    old: str
    new: str
    killers: tuple[str, ...]
    is_slow: bool = False

    def apply(self, source: str) -> str:
        """Return the source with the mistake in it; fail if there is no, or more than one, place for it."""
        count = source.count(self.old)
        assert count == 1, f"mutant {self.name!r}: its text stands {count} times in {self.file}; bring it up to date"
        return source.replace(self.old, self.new)


DIVISION = [
    Mutant(
        "losses are not divided by the factor",
        "weighting.py",
        "return weight / reference / factor",
        "return weight / reference",
        (SHORT_BATCH,),
    ),
    Mutant(
        "weights of micro-batches are ignored",
        "weighting.py",
        "return weight / reference / factor",
        "return 1.0 / factor",
        (SHORT_BATCH,),
    ),
    Mutant(
        "reference weight is dropped at the end",
        "weighting.py",
        "world_size * reference * factor / total_weight",
        "world_size * factor / total_weight",
        (SHORT_BATCH,),
    ),
    Mutant(
        "factor is dropped at the end",
        "weighting.py",
        "world_size * reference * factor / total_weight",
        "world_size * reference / total_weight",
        (SHORT_BATCH,),
    ),
    Mutant(
        "planned divisor is not planned",
        "weighting.py",
        "return share * (",
        "return (",
        (WINDOWS + "test_short_last_window_under_planned_divisor_divides_by_the_factor",),
    ),
    Mutant(
        "every window divides by the planned factor",
        "accumulator.py",
        'if self.divisor == "planned":',
        "if True:",
        (WINDOWS + "test_epoch_end_flush_steps_at_each_end",),
    ),
    Mutant(
        "gradients are not scaled at the end",
        "gradients/rescale.py",
        "    if factor == 1.0:\n        return\n",
        "    return\n",
        (SHORT_BATCH,),
    ),
    Mutant(
        "further loss terms are not divided",
        "gradients/terms.py",
        "alpha=factor)",
        "alpha=1.0)",
        (WEIGHTS + "test_two_loss_terms_divide_each_by_its_own_items_by_hand",),
    ),
    Mutant(
        "short last window is divided by the planned factor and mended afterwards",
        "window.py",
        "factor if limit is None else max(1, min(factor, limit))",
        "factor",
        (IDENTITY + "test_short_last_window_is_bit_identical_to_a_loop_that_divides_by_its_length",),
    ),
]

WORLD = [
    Mutant(
        "world size is missing",
        "weighting.py",
        "world_size * reference * factor / total_weight",
        "reference * factor / total_weight",
        (PROCESSES + "test_unequal_items_on_two_ranks_have_the_mean_of_all_items",),
    ),
    Mutant(
        "ranks do not add up their weights",
        "gradients/sync.py",
        "        dist.all_reduce(both)\n",
        "",
        (PROCESSES + "test_unequal_items_on_two_ranks_have_the_mean_of_all_items",),
        is_slow=True,
    ),
    Mutant(
        "a window that ended without a reduction is not averaged over ranks",
        "gradients/sync.py",
        "            flat /= self.world_size\n",
        "",
        (TABLE + "[2 ranks: stopped inside a window]",),
        is_slow=True,
    ),
    Mutant(
        "an epoch's last micro-batch is reduced though its window goes on",
        "strategy.py",
        "return self.block_backward_sync() if isinstance(self, ParallelStrategy) else nullcontext()",
        "return nullcontext()",
        (PROCESSES + "test_short_window_is_reduced_once_or_not_at_all",),
        is_slow=True,
    ),
    Mutant(
        "gradients of a rank without items are not zeroed",
        "gradients/rescale.py",
        "register_hook(torch.zeros_like)",
        "register_hook(torch.clone)",
        (TABLE + "[2 ranks: one rank empty for a window]",),
        is_slow=True,
    ),
]

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
        "accumulator.window.first -= _lightning.num_ready_batches(accumulator.trainer)",
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
        "        if not weights or not weights[0]:\n            return None\n",
        "        if not weights:\n            return None\n",
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

COUNTING = [
    Mutant(
        "the first label of a sample is counted",
        "counting.py",
        "            labels = labels[..., 1:]\n",
        "            labels = labels[..., :]\n",
        (WEIGHTS + "test_weighted_window_equals_one_large_batch",),
    ),
    Mutant(
        "ignored pixels are counted",
        "counting.py",
        'return torch.count_nonzero(pick(batch, key, "Pixels(mask=...)") != self.ignore_index)',
        'return torch.count_nonzero(pick(batch, key, "Pixels(mask=...)") >= 0)',
        (WEIGHTS + "test_weighted_window_equals_one_large_batch",),
    ),
    Mutant(
        "what training_step returns is not the weight",
        "microbatch/measure.py",
        'return step.raw["num_items"]',
        "return 1",
        (WEIGHTS + "test_count_returned_beside_the_loss_is_the_weight_without_asking_for_it",),
    ),
    Mutant(
        "the logged loss is a mean of means",
        "gradients/losses.py",
        "        if weights.count(weights[0]) == len(weights):\n",
        "        if True:\n",
        (LOGGING + "test_logged_loss_weighs_each_micro_batch",),
    ),
    Mutant(
        "samples are not summed over a ramp",
        "accumulator.py",
        "        state.num_samples += closed.num_samples\n",
        "        state.num_samples = closed.num_samples\n",
        (STEPS + "test_samples_at_a_step_are_the_sum_over_the_ramp",),
    ),
]

TRACES = [
    Mutant(
        "callbacks see the divided loss",
        "callback.py",
        'outputs["loss"] = step.for_user',
        "pass",
        (LOGGING + "test_loss_in_callback_outputs_is_the_users_own",),
    ),
    Mutant(
        "the trainer's factor is not restored",
        "callback.py",
        "trainer.accumulate_grad_batches = self._factor_before",
        "pass",
        (SETTINGS + "test_factor_and_classes_are_restored_after_training",),
    ),
    Mutant(
        "nothing is restored after an exception",
        "callback.py",
        "exception: BaseException) -> None:\n        self._release(trainer)",
        "exception: BaseException) -> None:\n        pass",
        (SETTINGS + "test_factor_and_classes_are_restored_after_an_exception",),
    ),
    Mutant(
        "the strategy's class is not restored",
        "callback.py",
        "        release_strategy(trainer.strategy)\n",
        "",
        (SETTINGS + "test_factor_and_classes_are_restored_after_training",),
    ),
]

MUTANTS = [*DIVISION, *WORLD, *BOUNDARY, *NOTHING, *COUNTING, *TRACES]
