"""Weights and windows in every precision, with a GradScaler too."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from lightning_accum import GradientAccumulation
from tests.harness import FLOAT32, Scalar, numbers, singles, train

SIXES = numbers(4, 4, 2)
"""The numbers 1 to 10 in batches of 4, 4 and 2: their mean is 5.5, the mean of the batches' means 6.17."""


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_unequal_batches_are_weighed_in_every_precision(precision: Any) -> None:
    record = train(Scalar(), SIXES, 3, precision=precision)
    assert record.gradients == pytest.approx([5.5], rel=FLOAT32)


def make_scaled() -> dict[str, Any]:
    """16-mixed with a GradScaler on the CPU, whose scale is 65536 at first."""
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))]}


def test_unequal_batches_under_a_scaler_are_weighed_before_clipping() -> None:
    record = train(Scalar(lr=0.1), SIXES, 2, gradient_clip_val=6.0, **make_scaled())
    assert record.gradients == pytest.approx([4.5, 9.5], rel=FLOAT32)
    assert record.clipped == pytest.approx([4.5, 6.0], rel=FLOAT32)
    assert record.module.w.item() == pytest.approx(1 - 0.45 - 0.6, abs=FLOAT32)


def step_of_terms(module: Scalar, batch: Any, batch_idx: int) -> Any:
    (a, num_a), (b, num_b) = batch
    return {"loss": {"a": module.w * a, "b": module.w * b}, "num_items": {"a": num_a, "b": num_b}}


TERMS = [((1.0, 5), (10.0, 1)), ((13.0, 1), (20.0, 4))]


def test_loss_terms_under_a_scaler_divide_each_by_its_own_items() -> None:
    accumulation = GradientAccumulation(2, weight="returned")
    record = train(Scalar(lr=0.01, step=step_of_terms), TERMS, accumulation, **make_scaled())
    assert record.gradients == pytest.approx([3.0 + 18.0], rel=FLOAT32)
    assert record.module.w.item() == pytest.approx(1 - 0.21, rel=FLOAT32)


def test_window_flushed_after_a_stop_under_a_scaler_is_unscaled() -> None:
    class Stops(L.Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            trainer.should_stop = args[-1] == 5

    record = train(Scalar(lr=0.1), singles(10), 4, last=[Stops()], **make_scaled())
    assert record.gradients == pytest.approx([2.5, 5.5], rel=FLOAT32)
    assert record.module.w.item() == pytest.approx(1 - 0.25 - 0.55, rel=FLOAT32)


def test_fp16_sums_of_large_weights_stay_in_range() -> None:
    """Weights of 1e6 would leave fp16 at once if losses were multiplied by them before they are divided."""

    def step(module: Scalar, batch: Any, batch_idx: int) -> Any:
        return {"loss": module.w * batch[0], "num_items": batch[1]}

    batches = [(2.0, 1e6), (4.0, 3e6), (1.0, 1e6), (3.0, 3e6)]
    module = Scalar(step=step, dtype=torch.float16)
    record = train(module, batches, GradientAccumulation(4, weight="returned"))
    assert record.gradients == pytest.approx([(2 + 12 + 1 + 9) / 8], rel=2e-3)  # fp16 keeps 11 bits
