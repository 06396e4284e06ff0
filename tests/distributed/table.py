"""The fixed table of trainings that run on real processes and are compared with the large batch over all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lightning_accum import CosineRamp, LinearRamp, Progress
from lightning_accum.schedules import as_schedule
from tests.jobs import CONDITIONAL, JOBS, Job, Net
from tests.large_batch import (
    OPTIMIZERS,
    LargeBatchRecord,
    MicroBatch,
    PlannedWindow,
    make_micro_batch,
    plan_windows,
    train_on_large_batches,
)

At = tuple[int, int]
"""A rank and the index of a micro-batch."""


def cycle(progress: Progress) -> int:
    """A schedule that changes at every window."""
    return (3, 1, 2, 5)[progress.num_optimizer_steps % 4]


@dataclass(frozen=True)
class Combination:
    """One training on several ranks.

    ``sizes`` are the samples of each micro-batch, a tuple a rank; ``empty`` the micro-batches without a valid item;
    ``silent`` those whose ``training_step`` returns ``None``; ``uses`` those whose samples use the conditional layer.
    """

    name: str
    job: str
    sizes: tuple[tuple[int, ...], ...]
    schedule: Any = 4
    unit: str = "micro_batches"
    epoch_end: str = "flush"
    num_epochs: int = 1
    empty: frozenset[At] = frozenset()
    silent: frozenset[At] = frozenset()
    uses: frozenset[At] | None = None
    strategy: str = "ddp"
    optimizer: str = "momentum"
    clip: float | None = None
    algorithm: str = "norm"
    with_length: bool = True
    stop_after: int | None = None
    max_steps: int = -1

    @property
    def world_size(self) -> int:
        return len(self.sizes)

    def get_job(self) -> Job:
        return JOBS[self.job] if self.uses is None else CONDITIONAL

    def make_net(self) -> Net:
        return self.get_job().net(3)

    def batches(self, rank: int) -> list[Any]:
        """The batches of one rank; every process can make those of all."""
        generator = torch.Generator().manual_seed(100 + rank)
        made = []
        for index, size in enumerate(self.sizes[rank]):
            batch = self.get_job().make(generator, size, (rank, index) in self.empty)
            if self.uses is not None:
                batch["uses"] = torch.full((size,), float((rank, index) in self.uses), dtype=torch.float64)
            made.append(batch)
        return made

    def windows(self) -> list[PlannedWindow]:
        """The windows over all ranks, by the reference's own counting."""
        every = [self.batches(rank) for rank in range(self.world_size)]
        micro: list[MicroBatch] = []
        for index, parts in enumerate(zip(*every, strict=True)):
            silent = [rank for rank, at in self.silent if at == index]
            micro.append(make_micro_batch(self.get_job(), parts, silent))
        epochs = [micro] * self.num_epochs
        if self.stop_after is not None:
            epochs = [micro[: self.stop_after + 1]]
        max_steps = None if self.max_steps < 0 else self.max_steps
        return plan_windows(as_schedule(self.schedule), epochs, self.unit, self.epoch_end, max_steps)

    def run_large(self) -> LargeBatchRecord:
        """Train with one forward and one backward a window, over what all ranks hold."""
        configure = OPTIMIZERS[self.optimizer]
        return train_on_large_batches(
            self.get_job(), self.make_net(), configure, self.windows(), self.clip, self.algorithm
        )


def at(*places: At) -> frozenset[At]:
    """The micro-batches at these ranks and indices."""
    return frozenset(places)


TWO = ((2, 1, 3, 1, 2, 2), (1, 3, 1, 2, 1, 1))
TWO_LONG = ((2, 1, 3, 1, 2, 2, 1, 1, 2), (1, 3, 1, 2, 1, 1, 3, 1, 2))
TWO_EVEN = ((2,) * 8, (2,) * 8)
FOUR = ((2, 1, 3, 1, 2), (1, 3, 1, 2, 1), (1, 1, 1, 1, 3), (3, 2, 1, 1, 1))

ON_TWO = [
    Combination("samples equal", "samples", TWO_EVEN),
    Combination("samples ragged", "samples", TWO, clip=0.3),
    Combination("samples by name", "samples", TWO, strategy="ddp_accum", num_epochs=2),
    Combination("samples auto by name", "samples", TWO, 3, strategy="auto_accum"),
    Combination("samples bucket views", "samples", TWO, strategy="ddp_bucket_view", optimizer="adamw"),
    Combination("mean of means", "equal", TWO),
    Combination("tokens", "tokens", TWO, 2, num_epochs=2, optimizer="adamw", clip=0.3),
    Combination("tokens without shift by name", "tags", TWO, strategy="ddp_accum"),
    Combination("pixels", "pixels", TWO, 3, optimizer="adamw"),
    Combination("pixels, values clipped", "pixels", TWO, 3, clip=0.02, algorithm="value"),
    Combination("returned", "returned", TWO),
    Combination("callable", "callable", TWO, 4, optimizer="adamw"),
    Combination("terms", "terms", TWO, 2),
    Combination("terms by name", "terms", TWO, 4, strategy="ddp_accum", clip=0.3, optimizer="adamw"),
    Combination("terms with bucket views", "terms", TWO, 3, strategy="ddp_bucket_view"),
    Combination("terms, one rank empty", "terms", TWO, 3, empty=at((0, 0), (0, 1), (0, 2), (1, 4))),
    Combination("terms with a head each", "heads", TWO, 2, num_epochs=2),
    Combination("terms with a head each, by name", "heads", TWO, 3, strategy="ddp_accum", optimizer="adamw", clip=0.3),
    Combination("terms with a head each, one rank empty", "heads", TWO, 3, empty=at((0, 0), (0, 1), (0, 2), (1, 5))),
    Combination("terms with a head each, unused looked for", "heads", TWO, 3, strategy="ddp_unused"),
    Combination("terms with a head each, stopped", "heads", TWO_LONG, 4, stop_after=5),
    Combination("terms with a head each, one window", "heads", TWO, 6),
    Combination("one empty in the middle", "tokens", TWO, empty=at((0, 1))),
    Combination("closing one empty on one rank", "tokens", TWO, empty=at((1, 3), (0, 5)), strategy="ddp_accum"),
    Combination("closing one empty on all ranks", "pixels", TWO, empty=at((0, 3), (1, 3)), optimizer="adamw"),
    Combination("one rank empty for a window", "returned", TWO, 3, empty=at((1, 0), (1, 1), (1, 2))),
    Combination("first window empty on rank 0", "tokens", TWO, 2, empty=at((0, 0), (0, 1)), optimizer="adamw"),
    Combination("a window empty on all ranks", "tags", TWO, 2, empty=at((0, 2), (0, 3), (1, 2), (1, 3))),
    Combination("everything empty at first", "returned", TWO, 2, empty=at((0, 0), (0, 1), (1, 0), (1, 1))),
    Combination("last window empty on all ranks", "pixels", TWO, 4, empty=at((0, 4), (0, 5), (1, 4), (1, 5))),
    Combination("silent in the middle on one rank", "samples", TWO, silent=at((1, 1))),
    Combination("silent at the close on one rank", "samples", TWO, silent=at((0, 3)), strategy="ddp_accum"),
    Combination("silent for a window on one rank", "returned", TWO, 3, silent=at((0, 0), (0, 1), (0, 2))),
    Combination("silent for a window on all ranks", "samples", TWO, 2, silent=at((0, 2), (0, 3), (1, 2), (1, 3))),
    Combination("schedule changes at every window", "tokens", TWO_LONG, cycle, num_epochs=2, optimizer="adamw"),
    Combination("stages inside an epoch", "samples", TWO_LONG, "0 steps: 1, 2 steps: 3", num_epochs=2),
    Combination("ramp over samples", "returned", TWO_LONG, LinearRamp(1, 4, over="24 samples"), num_epochs=2),
    Combination("per epoch", "tags", TWO, {0: 1, 1: 4}, num_epochs=2),
    Combination("unit samples", "samples", TWO_LONG, 8, unit="samples", num_epochs=2),
    Combination("unit samples equal", "samples", TWO_EVEN, 8, unit="samples", strategy="ddp_accum"),
    Combination("unit samples, a ramp", "pixels", TWO_LONG, CosineRamp(4, 14, over="4 steps"), unit="samples"),
    Combination("unit items", "tokens", TWO_LONG, 9, unit="items", num_epochs=2, optimizer="adamw"),
    Combination("unit items with empty ones", "batch", TWO_LONG, 3, unit="items", empty=at((0, 0), (1, 0), (1, 3))),
    Combination("carry", "samples", TWO, 4, epoch_end="carry", num_epochs=3),
    Combination("carry without length", "tokens", TWO, 5, epoch_end="carry", num_epochs=2, with_length=False),
    Combination("drop", "returned", TWO, 4, epoch_end="drop", num_epochs=2, optimizer="adamw"),
    Combination("flush without length", "pixels", TWO, 4, num_epochs=2, with_length=False),
    Combination("stopped inside a window", "samples", TWO_LONG, 4, stop_after=5),
    Combination("stopped inside a window, clipped", "tokens", TWO_LONG, 4, stop_after=6, clip=0.2, optimizer="adamw"),
    Combination("terms stopped inside a window", "terms", TWO_LONG, 4, stop_after=5, strategy="ddp_accum"),
    Combination("stopped with one rank empty", "returned", TWO_LONG, 4, stop_after=5, empty=at((0, 4), (0, 5))),
    Combination("max_steps inside an epoch", "samples", TWO_LONG, 2, num_epochs=2, max_steps=3),
    Combination(
        "layer used in the first micro-batch only",
        "",
        TWO,
        uses=at((0, 0), (1, 0), (0, 4), (1, 4)),
        strategy="ddp_unused",
    ),
    Combination(
        "layer used on one rank only", "", TWO, uses=at((0, 1), (0, 4)), strategy="ddp_unused", optimizer="adamw"
    ),
    Combination(
        "layer used where the close is empty",
        "",
        TWO,
        3,
        uses=at((0, 0), (1, 1), (1, 2), (0, 5)),
        empty=at((1, 2), (0, 5)),
        strategy="ddp_unused",
    ),
]

ON_FOUR = [
    Combination("samples ragged", "samples", FOUR, 2, clip=0.3),
    Combination("tokens by name", "tokens", FOUR, 3, strategy="ddp_accum", optimizer="adamw", num_epochs=2),
    Combination("pixels", "pixels", FOUR, 4),
    Combination("terms", "terms", FOUR, 2, empty=at((0, 0), (0, 1), (2, 1))),
    Combination("callable with empty ranks", "callable", FOUR, 2, empty=at((0, 0), (1, 0), (0, 1), (3, 4))),
    Combination("unit samples", "samples", FOUR, 13, unit="samples", num_epochs=2),
    Combination("unit items", "tokens", FOUR, 30, unit="items", strategy="ddp_accum"),
    Combination("schedule changes at every window", "returned", FOUR, cycle, num_epochs=2, epoch_end="carry"),
    Combination("stopped inside a window", "tags", FOUR, 3, stop_after=3),
    Combination("layer used on one rank only", "", FOUR, 2, uses=at((2, 0), (3, 3)), strategy="ddp_unused"),
    Combination("N of 1 on four ranks", "tokens", FOUR, 1, optimizer="adamw"),
]

TABLE: dict[str, Combination] = {f"{c.world_size} ranks: {c.name}": c for c in ON_TWO + ON_FOUR}
assert len(TABLE) == len(ON_TWO) + len(ON_FOUR), "two combinations have the same name"
