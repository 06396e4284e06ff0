"""How many steps there will be, what is counted over a ramp, and the simulation of a training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch

from lightning_accum import CosineRamp, ExponentialRamp, GradientAccumulation, LinearRamp, Progress
from lightning_accum.simulation import simulate_windows
from tests.harness import FLOAT32, Scalar, make_loader, numbers, singles, train


class Asks(Scalar):
    """Asks for the number of steps where a learning-rate schedule is built, and builds a one-cycle from it."""

    num_estimated: Any = None

    def configure_optimizers(self) -> Any:
        self.num_estimated = self.trainer.estimated_stepping_batches
        optimizer = torch.optim.SGD(self.parameters(), lr=0.0)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=self.num_estimated)
        return [optimizer], [{"scheduler": cycle, "interval": "step"}]


ONE_CYCLE_END = 4e-6
"""OneCycleLR's last rate for max_lr=1: 1 / 25 / 1e4."""


@pytest.mark.parametrize(
    ("schedule", "num_epochs", "num_steps"),
    [({0: 4}, 2, 6), ({0: 1, 2: 4}, 4, 26), (4, 2, 6), ("0:1,2:4", 4, 26), ("0 steps: 1, 4 steps: 3", 1, 6)],
)
def test_steps_are_known_before_training_and_a_one_cycle_ends_at_its_end(
    schedule: Any, num_epochs: int, num_steps: int
) -> None:
    record = train(Asks(), singles(10), schedule, max_epochs=num_epochs)
    assert record.module.num_estimated == record.num_updates == num_steps
    assert record.lrs[-1] == pytest.approx(ONE_CYCLE_END, rel=1e-6)
    assert max(record.lrs) == pytest.approx(1.0, abs=0.1)


def test_steps_by_lightning_alone_are_overestimated_and_a_one_cycle_ends_early() -> None:
    scheduler = L.pytorch.callbacks.GradientAccumulationScheduler({0: 4})
    record = train(Asks(), singles(10), callbacks=[scheduler], max_epochs=2)
    assert (record.module.num_estimated, record.num_updates) == (20, 6)
    assert record.lrs[-1] > 0.1


@pytest.mark.parametrize(
    ("accumulation", "options"),
    [
        (GradientAccumulation(4, epoch_end="carry"), {"max_epochs": 3}),
        (GradientAccumulation(4, epoch_end="drop"), {"max_epochs": 3}),
        (GradientAccumulation(8, epoch_end="carry"), {"max_epochs": 2}),
        (GradientAccumulation(4), {"max_epochs": 3, "max_steps": 5}),
        (GradientAccumulation(4), {"max_epochs": -1, "max_steps": 5}),
        (GradientAccumulation(4), {"max_epochs": 3, "limit_train_batches": 5}),
        (GradientAccumulation(4), {"max_epochs": 3, "limit_train_batches": 0.5}),
        (GradientAccumulation(4), {"max_epochs": 3, "overfit_batches": 3}),
        (GradientAccumulation(6, unit="samples"), {"max_epochs": 3}),
        (GradientAccumulation(6, unit="samples", epoch_end="carry"), {"max_epochs": 3}),
        (GradientAccumulation(LinearRamp(1, 6, over="5 steps")), {"max_epochs": 3}),
        (GradientAccumulation(LinearRamp(2, 12, over="30 samples"), unit="samples"), {"max_epochs": 3}),
        (GradientAccumulation(CosineRamp(1, 6, over="50%")), {"max_epochs": 3}),
        (GradientAccumulation(ExponentialRamp(1, 8, over="12 micro_steps")), {"max_epochs": 3}),
        (GradientAccumulation(lambda progress: 1 + progress.num_optimizer_steps % 3), {"max_epochs": 3}),
    ],
)
def test_steps_known_before_training_are_those_that_training_makes(accumulation: Any, options: Any) -> None:
    loader = torch.utils.data.DataLoader(torch.arange(1.0, 20.0), batch_size=2)  # ten batches, the last of one sample
    record = train(Asks(), loader, accumulation, **options)
    assert record.module.num_estimated == record.num_updates == record.global_step > 0


def test_asking_for_the_steps_consumes_nothing_of_a_stateful_loader() -> None:
    class OnceThrough:
        """Every ``iter`` goes on where the last one stopped, as a stream from a disk does."""

        def __init__(self) -> None:
            self.rest = iter(singles(8))

        def __len__(self) -> int:
            return 8

        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            return next(self.rest)

    record = train(Asks(), OnceThrough(), 4)
    assert record.module.num_estimated == 2
    assert record.gradients == pytest.approx([2.5, 6.5], rel=FLOAT32)


def test_asking_for_the_steps_of_a_loader_without_length_asks_for_max_steps() -> None:
    with pytest.raises(ValueError, match="max_steps"):
        train(Asks(), make_loader(singles(10), with_length=False), 4)


def test_asking_for_the_steps_of_a_loader_without_length_gives_max_steps() -> None:
    record = train(Asks(), make_loader(singles(10), with_length=False), 4, max_steps=2)
    assert record.module.num_estimated == record.num_updates == 2


# --- sums over a ramp


def test_samples_at_a_step_are_the_sum_over_the_ramp() -> None:
    def ramp(progress: Progress) -> int:
        return min(2**progress.num_optimizer_steps, 8)

    accumulation = GradientAccumulation(ramp)
    train(Scalar(), numbers(*[2] * 15), accumulation)
    assert accumulation.state.num_optimizer_steps == 4
    assert accumulation.state.num_samples == 2 * (1 + 2 + 4 + 8)
    simulated = simulate_windows(ramp, batches_per_epoch=15, num_epochs=1, batch_size=2)
    assert [window.num_samples_before for window in simulated] == [0, 2, 6, 14]
    assert [window.effective_batch_size for window in simulated] == [2, 4, 8, 16]


def test_step_at_a_number_of_samples_is_the_sum_over_the_ramp() -> None:
    # 2 samples a window until 6 were seen, then 4: 3 windows of one batch, then windows of two
    record = train(Scalar(), numbers(*[2] * 9), GradientAccumulation("0 samples: 2, 6 samples: 4", unit="samples"))
    assert record.batch_of_step == [0, 1, 2, 4, 6, 8]


@pytest.mark.parametrize("epoch_end", ["flush", "carry", "drop"])
@pytest.mark.parametrize(
    "schedule",
    [
        3,
        {0: 2, 1: 5},
        "0 steps: 1, 3 steps: 4",
        LinearRamp(1, 6, over="20 samples"),
        LinearRamp(1, 6, over="2 epochs"),
        CosineRamp(1, 6, over="12 micro_steps"),
        lambda progress: 1 + progress.num_optimizer_steps % 4,
        lambda progress: 1 + progress.num_samples % 4,
    ],
)
def test_simulated_windows_are_those_of_the_training(schedule: Any, epoch_end: Any) -> None:
    record = train(Scalar(), numbers(*[2] * 7), GradientAccumulation(schedule, epoch_end=epoch_end), max_epochs=3)
    simulated = simulate_windows(schedule, batches_per_epoch=7, num_epochs=3, batch_size=2, epoch_end=epoch_end)
    stepped = [window for window in simulated if window.stepped]
    assert record.num_updates == len(stepped) > 0
    closing = [(window.first_batch + window.num_micro_batches - 1) % 7 for window in stepped]
    assert record.batch_of_step == closing
