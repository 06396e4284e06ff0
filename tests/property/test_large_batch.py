"""Whole trainings on one device against the real large batch, drawn at random: parameters after every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lightning_accum import CosineRamp, ExponentialRamp, GradientAccumulation, LinearRamp, Progress, Sequence
from lightning_accum.schedules import as_schedule
from tests.harness import FLOAT64, Record, make_loader, train
from tests.jobs import JOBS, JobModule, Net
from tests.large_batch import (
    OPTIMIZERS,
    LargeBatchRecord,
    PlannedWindow,
    make_micro_batch,
    plan_windows,
    train_on_large_batches,
)

NUM_EXAMPLES, NUM_SLOW_EXAMPLES = 300, 2000

AROUND_ZERO = 1e-13
"""Absolute error allowed for parameters near 0, whose relative error means nothing; typical ones are of size 1."""

LOGGED = 1e-6
"""Relative error of a logged loss, which Lightning keeps in float32."""


@dataclass(frozen=True)
class Training:
    """One drawn training. Everything a failing example needs to be repeated by hand stands in its repr."""

    job: str
    sizes: tuple[int, ...]
    empty: frozenset[int]
    gives_up: frozenset[int]
    schedule: Any
    unit: str
    epoch_end: str
    num_epochs: int
    with_length: bool
    optimizer: str
    clip: float | None
    algorithm: str
    max_steps: int | None
    seed: int

    def batches(self) -> list[Any]:
        generator = torch.Generator().manual_seed(self.seed)
        make = JOBS[self.job].make
        return [make(generator, size, index in self.empty) for index, size in enumerate(self.sizes)]

    def windows(self) -> list[PlannedWindow]:
        """The windows by the reference's own counting, on batches that may give up."""
        job = JOBS[self.job]
        silent = [{0} if index in self.gives_up else set() for index in range(len(self.sizes))]
        micro = [make_micro_batch(job, [batch], s) for batch, s in zip(self.batches(), silent, strict=True)]
        schedule = as_schedule(self.schedule)
        return plan_windows(schedule, [micro] * self.num_epochs, self.unit, self.epoch_end, self.max_steps)

    def run(self, **options: Any) -> tuple[Record, GradientAccumulation]:
        """Train with the package."""
        module = JobModule(JOBS[self.job], JOBS[self.job].net(self.seed), OPTIMIZERS[self.optimizer], self.gives_up)
        accumulation = GradientAccumulation(
            self.schedule, unit=self.unit, weight=JOBS[self.job].weight, epoch_end=self.epoch_end
        )
        options.update(gradient_clip_val=self.clip, gradient_clip_algorithm=self.algorithm)
        loader = make_loader(self.batches(), self.with_length)
        max_steps = -1 if self.max_steps is None else self.max_steps
        record = train(module, loader, accumulation, max_epochs=self.num_epochs, max_steps=max_steps, **options)
        return record, accumulation

    def run_large(self) -> LargeBatchRecord:
        """Train with one forward and one backward a window."""
        net, configure = JOBS[self.job].net(self.seed), OPTIMIZERS[self.optimizer]
        return train_on_large_batches(JOBS[self.job], net, configure, self.windows(), self.clip, self.algorithm)


@dataclass(frozen=True)
class Cycle:
    """A schedule that walks through values, one a step: it changes at every window, up and down."""

    values: tuple[int, ...]

    def __call__(self, progress: Progress) -> int:
        return self.values[progress.num_optimizer_steps % len(self.values)]


def _counts(limit: int) -> st.SearchStrategy[int]:
    return st.integers(1, limit)


def _schedules(limit: int, knows_fraction: bool, counts_samples: bool) -> st.SearchStrategy[Any]:
    value = st.sampled_from([*range(2, limit + 1), 1])
    units = ["steps", "micro_steps", "epochs"] + ["samples"] * counts_samples
    duration = st.tuples(_counts(9), st.sampled_from(units)).map(lambda d: f"{d[0]} {d[1]}")
    if knows_fraction:
        duration = duration | st.sampled_from(["30%", "75%"])
    ramp = st.sampled_from([LinearRamp, CosineRamp, ExponentialRamp])
    return st.one_of(
        value,
        st.dictionaries(st.integers(1, 2), value, min_size=1).flatmap(lambda d: value.map(lambda v: {0: v, **d})),
        st.builds(lambda a, b, n: f"0 steps: {a}, {n} steps: {b}", value, value, _counts(4)),
        st.builds(lambda kind, a, b, over: kind(a, b, over=over), ramp, value, value, duration),
        st.builds(lambda a, b, n: Sequence([(a, f"{n} micro_steps")], last=b), value, value, _counts(9)),
        st.lists(value, min_size=1, max_size=4).map(lambda values: Cycle(tuple(values))),
    )


@st.composite
def trainings(draw: Any) -> Training:
    name = draw(st.sampled_from(sorted(JOBS)))
    job = JOBS[name]
    num_batches = draw(st.sampled_from([5, 6, 7, 8, 3, 1]))
    sizes = tuple(draw(st.lists(st.integers(1, 3), min_size=num_batches, max_size=num_batches)))
    flags = st.lists(st.sampled_from([False, True, False]), min_size=num_batches, max_size=num_batches)
    some = flags.map(lambda chosen: frozenset(index for index, is_chosen in enumerate(chosen) if is_chosen))
    often_none = st.just(frozenset()) | some | some
    units = ["micro_batches", "samples"] + ["items"] * (job.knows_items_before and name != "equal")
    unit = draw(st.sampled_from(units))
    # whether a micro-batch that gave up counts as samples seen is nobody's business: such trainings count in batches
    gives_up = draw(often_none) if unit == "micro_batches" else frozenset()
    with_length = draw(st.booleans())
    num_epochs = draw(st.sampled_from([2, 1, 3]))
    limit = {"micro_batches": 5, "samples": 9, "items": 14}[unit]
    return Training(
        job=name,
        sizes=sizes,
        empty=draw(often_none) if job.can_be_empty else frozenset(),
        gives_up=gives_up,
        schedule=draw(_schedules(limit, with_length, not gives_up)),
        unit=unit,
        epoch_end=draw(st.sampled_from(["flush", "carry", "drop"])),
        num_epochs=num_epochs,
        with_length=with_length,
        optimizer=draw(st.sampled_from(sorted(OPTIMIZERS))),
        clip=draw(st.sampled_from([None, 0.3, 2.0])),
        algorithm=draw(st.sampled_from(["norm", "value"])),
        max_steps=draw(st.none() | _counts(6)),
        seed=draw(st.integers(0, 2**16)),
    )


def check(training: Training) -> None:
    """The parameters after every step, and where each step was made, are those of the large batch."""
    windows, expected = training.windows(), training.run_large()
    record, accumulation = training.run()
    stepped = [window for window in windows if window.steps]
    assert record.num_updates == record.global_step == len(stepped)
    assert record.batch_of_step == [window.last_batch for window in stepped]
    for step, (mine, theirs) in enumerate(zip(record.parameters, expected.parameters, strict=True)):
        message = f"after step {step}"
        torch.testing.assert_close(mine, theirs, rtol=FLOAT64, atol=AROUND_ZERO, msg=lambda text, m=message: m + text)
    state = accumulation.state
    assert state.num_optimizer_steps == len(stepped)
    assert state.num_empty_windows == sum(window.num_items == 0 and _was_kept(training, window) for window in windows)
    assert state.num_items == pytest.approx(sum(window.num_items for window in windows), rel=FLOAT64)


def _was_kept(training: Training, window: PlannedWindow) -> bool:
    return training.epoch_end != "drop" or window.reached(training.unit)


QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)


@settings(QUIET, max_examples=NUM_EXAMPLES)
@given(trainings())
def test_training_equals_the_real_large_batch(training: Training) -> None:
    check(training)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(QUIET, max_examples=NUM_SLOW_EXAMPLES, derandomize=False)
@given(trainings())
def test_training_equals_the_real_large_batch_in_many_cases(training: Training) -> None:
    check(training)


@settings(QUIET, max_examples=60)
@given(trainings())
def test_logged_loss_is_the_large_batchs_loss(training: Training) -> None:
    expected = training.run_large()
    record, _ = training.run(log=True)
    logged = [value for _, value in record.points("accumulation/loss")]
    assert logged == pytest.approx(expected.losses, rel=LOGGED)


@settings(QUIET, max_examples=60)
@given(trainings())
def test_estimated_steps_are_the_steps_made_wherever_they_can_be_known(training: Training) -> None:
    """Counted before training, where every batch holds one sample and something valid, and the length is known."""
    regular = Training(**{**vars(training), "sizes": (1,) * len(training.sizes), "empty": frozenset()})
    regular = Training(**{**vars(regular), "gives_up": frozenset(), "with_length": True, "job": "samples"})
    assume(regular.unit == "micro_batches" and "samples" not in str(regular.schedule))
    module = JobModule(JOBS["samples"], Net(), OPTIMIZERS["sgd"])
    module.asks_for_estimate = True
    accumulation = GradientAccumulation(regular.schedule, unit=regular.unit, epoch_end=regular.epoch_end)
    max_steps = -1 if regular.max_steps is None else regular.max_steps
    record = train(module, regular.batches(), accumulation, max_epochs=regular.num_epochs, max_steps=max_steps)
    assert module.num_estimated == record.num_updates
