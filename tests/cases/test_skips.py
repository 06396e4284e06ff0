"""``training_step`` returns nothing: the rest of the window counts, in full precision and with a GradScaler."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from lightning_accum import GradientAccumulation
from tests.harness import FLOAT32, Record, Scalar, singles, train


def skip_at(skipped: Collection[int]) -> Any:
    def step(module: Scalar, batch: torch.Tensor, batch_idx: int) -> torch.Tensor | None:
        return None if batch_idx in skipped else module.w * batch.mean()

    return step


def run(skipped: Collection[int], scaled: bool, accumulation: Any = 4, **options: Any) -> Record:
    """Train on 8 batches with lr 0.1; ``scaled`` uses 16-mixed with a GradScaler, both on the CPU."""
    if scaled:
        options["plugins"] = [MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))]
    return train(Scalar(lr=0.1, step=skip_at(skipped)), singles(8), accumulation, **options)


@pytest.mark.parametrize("scaled", [False, True], ids=["32-true", "16-mixed"])
@pytest.mark.parametrize(
    ("skipped", "expected"),
    [
        ((), [2.5, 6.5]),
        ((1,), [8 / 3, 6.5]),
        ((0,), [3.0, 6.5]),
        ((3,), [2.0, 6.5]),
        ((7,), [2.5, 6.0]),
        ((0, 1, 2), [4.0, 6.5]),
        ((0, 1, 3), [3.0, 6.5]),
        ((4, 5, 6, 7), [2.5]),
        ((0, 1, 2, 3), [6.5]),
    ],
)
def test_window_with_skipped_batches_is_the_mean_of_the_others(
    skipped: tuple[int, ...], expected: list[float], scaled: bool
) -> None:
    record = run(skipped, scaled)
    assert record.gradients == pytest.approx(expected, rel=FLOAT32)
    assert record.global_step == record.num_updates == record.num_scheduler_steps == len(expected)
    assert record.module.w.item() == pytest.approx(1 - 0.1 * sum(expected), rel=FLOAT32)


@pytest.mark.parametrize("scaled", [False, True], ids=["32-true", "16-mixed"])
def test_window_whose_closing_batch_is_skipped_ends_at_the_weight_by_hand(scaled: bool) -> None:
    assert run((3,), scaled).module.w.item() == pytest.approx(0.15, rel=1e-5)


@pytest.mark.parametrize(("scaled", "weight"), [(False, 0.2), (True, 0.35)], ids=["32-true", "16-mixed"])
def test_window_whose_closing_batch_is_skipped_by_lightning_alone_ends_elsewhere(scaled: bool, weight: float) -> None:
    record = run((3,), scaled, None, accumulate_grad_batches=4)
    assert record.module.w.item() == pytest.approx(weight, rel=1e-5)


@pytest.mark.parametrize("scaled", [False, True], ids=["32-true", "16-mixed"])
def test_window_skipped_whole_is_counted_and_told(scaled: bool) -> None:
    accumulation = GradientAccumulation(4)
    record = run((4, 5, 6, 7), scaled, accumulation)
    assert accumulation.state.num_empty_windows == 1
    assert accumulation.state.num_optimizer_steps == record.global_step == 1
    assert record.warned("window", "no")


def test_short_last_window_with_skipped_batches_is_the_mean_of_the_others() -> None:
    record = train(Scalar(step=skip_at((8,))), singles(10), 4)
    assert record.gradients == pytest.approx([2.5, 6.5, 10.0], rel=FLOAT32)


def test_skipped_batches_under_planned_divisor_leave_a_smaller_step() -> None:
    record = train(Scalar(step=skip_at((1,))), singles(8), GradientAccumulation(4, divisor="planned"))
    assert record.gradients == pytest.approx([2.0, 6.5], rel=FLOAT32)
