"""Clipping acts once a step, on the finished gradient."""

from __future__ import annotations

import pytest
import torch

from lightning_accum import GradientAccumulation
from tests.harness import FLOAT32, Record, Scalar, Spy, numbers, singles, train


def test_clipping_runs_once_a_step_on_the_finished_gradient() -> None:
    record = train(Scalar(), singles(10), 4, gradient_clip_val=8.0)
    assert record.gradients == pytest.approx([2.5, 6.5, 9.5], rel=FLOAT32)
    assert record.module_gradients == pytest.approx([2.5, 6.5, 9.5], rel=FLOAT32)
    assert record.clipped == pytest.approx([2.5, 6.5, 8.0], rel=FLOAT32)
    assert len(record.gradients) == 3
    assert record.num_after_backward == 10


def test_clipping_by_value_runs_once_a_step_on_the_finished_gradient() -> None:
    record = train(Scalar(), singles(10), 4, gradient_clip_val=6.0, gradient_clip_algorithm="value")
    assert record.clipped == pytest.approx([2.5, 6.0, 6.0], rel=FLOAT32)


def test_clipping_of_unequal_batches_sees_the_weighted_mean() -> None:
    # 1..5 and 13 in one window: the mean of its six numbers is 28/6; the mean of its two means 8
    batches = [torch.arange(1.0, 6.0), torch.tensor([13.0])]
    record = train(Scalar(), batches, 2, gradient_clip_val=5.0)
    assert record.gradients == pytest.approx([28 / 6], rel=FLOAT32)
    assert record.clipped == pytest.approx([28 / 6], rel=FLOAT32)


def test_updates_use_the_clipped_gradient() -> None:
    record = train(Scalar(lr=0.1), singles(10), 4, gradient_clip_val=8.0)
    assert record.module.w.item() == pytest.approx(1 - 0.25 - 0.65 - 0.8, rel=FLOAT32)


@pytest.mark.parametrize("position", ["first", "last"])
def test_callbacks_see_the_finished_gradient_wherever_they_stand_in_the_list(position: str) -> None:
    other = Record()
    place = {"callbacks" if position == "first" else "last": [Spy(other)]}
    record = train(Scalar(), numbers(4, 4, 2), GradientAccumulation(3), **place)
    assert record.gradients == other.gradients == pytest.approx([5.5], rel=FLOAT32)
