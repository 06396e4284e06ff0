"""The real large batch, in plain torch: what accumulation must equal. Nothing here calls the accumulation itself.

:func:`plan_windows` decides by counting on its fingers which micro-batches form a window, and
:func:`train_on_large_batches` trains on each window as *one* batch: one forward and one backward over everything that
it holds, on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from lightning_accum.progress import Progress
from tests.harness import flat_parameters
from tests.jobs import Job

ADAM_EPS = 1e-3
"""Adam divides by sqrt(v) + eps. The usual 1e-8 makes the step of a gradient that is rounding noise around zero as long
as any other, and so compares noise; with 1e-3 the step is a smooth function of the gradient and 1e-12 can be asked."""


@dataclass
class MicroBatch:
    """One micro-batch: its parts on the ranks on which ``training_step`` returned a loss."""

    parts: list[Any]
    num_samples: int = 0
    num_items: float = 0.0


def make_micro_batch(job: Job, parts: Sequence[Any], silent: Container[int] = ()) -> MicroBatch:
    """A micro-batch of these batches, one a rank, of which the ``silent`` ranks return ``None``."""
    num_samples = sum(len(part[0] if isinstance(part, tuple) else part["x"]) for part in parts)
    heard = [part for rank, part in enumerate(parts) if rank not in silent]
    return MicroBatch(heard, num_samples, float(sum(total_count(job.count(part)) for part in heard)))


def total_count(count: Any) -> float:
    """All items of a count, whether of one loss term or of several."""
    return float(sum(count.values())) if isinstance(count, dict) else float(count)


@dataclass
class PlannedWindow:
    """The micro-batches of a window, where it ended, and whether an optimizer step follows."""

    micro_batches: list[MicroBatch] = field(default_factory=list)
    target: float = 0.0
    epoch: int = 0
    last_batch: int = 0
    steps: bool = False
    before: Progress = field(default_factory=Progress)

    @property
    def num_items(self) -> float:
        return sum(micro.num_items for micro in self.micro_batches)

    @property
    def num_samples(self) -> int:
        return sum(micro.num_samples for micro in self.micro_batches)

    def reached(self, unit: str) -> bool:
        held = {"micro_batches": len(self.micro_batches), "samples": self.num_samples, "items": self.num_items}[unit]
        return held >= self.target


def plan_windows(
    schedule: Callable[[Progress], float],
    epochs: Sequence[Sequence[MicroBatch]],
    unit: str = "micro_batches",
    epoch_end: str = "flush",
    max_steps: int | None = None,
) -> list[PlannedWindow]:
    """Every window of a training in order, dropped and empty ones included, by walking through its micro-batches."""
    windows: list[PlannedWindow] = []
    window: PlannedWindow | None = None
    progress = Progress()
    total = sum(len(epoch) for epoch in epochs)
    for epoch, micro_batches in enumerate(epochs):
        for index, micro in enumerate(micro_batches):
            if window is None:
                done = progress.num_micro_steps / total
                by_steps = progress.num_optimizer_steps / max_steps if max_steps else 0.0
                window = PlannedWindow(before=replace(progress, epoch=epoch, fraction=max(done, by_steps)))
                window.target = schedule(window.before)
            window.micro_batches.append(micro)
            window.epoch, window.last_batch = epoch, index
            is_last = index == len(micro_batches) - 1
            ends_epoch = is_last and epoch_end != "carry"
            ends_training = is_last and epoch == len(epochs) - 1
            full = window.reached(unit)
            if full or ends_epoch or ends_training:
                window.steps = (full or epoch_end != "drop") and window.num_items > 0
                progress = _advance(progress, window)
                windows.append(window)
                window = None
                if max_steps is not None and progress.num_optimizer_steps >= max_steps:
                    return windows
    return windows


def _advance(progress: Progress, window: PlannedWindow) -> Progress:
    return replace(
        progress,
        num_optimizer_steps=progress.num_optimizer_steps + window.steps,
        num_micro_steps=progress.num_micro_steps + len(window.micro_batches),
        num_samples=progress.num_samples + window.num_samples,
        num_items=progress.num_items + window.num_items,
    )


def join(batches: Sequence[Any]) -> Any:
    """One batch that holds all samples of ``batches``."""
    first = batches[0]
    if isinstance(first, dict):
        return {key: torch.cat([batch[key] for batch in batches]) for key in first}
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


def large_loss(job: Job, net: nn.Module, parts: Sequence[Any]) -> Tensor:
    """The loss of everything in ``parts`` as one batch: each term a mean over all of its items, or nothing at all."""
    if job.is_mean_of_means:
        return torch.stack([job.loss(net, part) for part in parts]).mean()
    batch = join(parts)
    loss, count = job.loss(net, batch), job.count(batch)
    if not isinstance(loss, dict):
        return loss
    return sum(term for name, term in loss.items() if count[name] > 0)


def clip_gradients(net: nn.Module, value: float | None, algorithm: str) -> None:
    """Clip as the Trainer does."""
    if value is None:
        return
    if algorithm == "norm":
        nn.utils.clip_grad_norm_(net.parameters(), value)
    else:
        nn.utils.clip_grad_value_(net.parameters(), value)


@dataclass
class LargeBatchRecord:
    """The parameters after each step of the large batch, and the loss it was made for."""

    parameters: list[Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def train_on_large_batches(
    job: Job,
    net: nn.Module,
    configure: Callable[[nn.Module], torch.optim.Optimizer],
    windows: Sequence[PlannedWindow],
    clip: float | None = None,
    algorithm: str = "norm",
) -> LargeBatchRecord:
    """Train ``net`` with one forward and one backward a window, over everything that the window holds."""
    optimizer = configure(net)
    record = LargeBatchRecord()
    for window in windows:
        if not window.steps:
            continue
        optimizer.zero_grad()
        parts = [part for micro in window.micro_batches for part in micro.parts]
        loss = large_loss(job, net, parts)
        loss.backward()
        clip_gradients(net, clip, algorithm)
        optimizer.step()
        record.losses.append(loss.item())
        record.parameters.append(flat_parameters(net))
    return record


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda net: torch.optim.SGD(net.parameters(), lr=0.05),
    "momentum": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda net: torch.optim.AdamW(net.parameters(), lr=0.02, eps=ADAM_EPS),
}
