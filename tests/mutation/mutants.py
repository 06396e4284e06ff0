"""The mistakes: in the division, over ranks, in counting, in what is left behind; and those of windows."""

from __future__ import annotations

from tests.mutation.mutant import (
    IDENTITY,
    LOGGING,
    PROCESSES,
    SETTINGS,
    SHORT_BATCH,
    STEPS,
    TABLE,
    WEIGHTS,
    WINDOWS,
    Mutant,
)
from tests.mutation.mutants_of_windows import BOUNDARY, NOTHING

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
