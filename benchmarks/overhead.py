"""What a micro-batch costs beside its forward and backward: ours, Lightning's own, accelerate, a hand-written loop.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --repeats 101 --clock cpu

The model is one ``Linear``, so nearly all of the time is the loop around it: the worst case, which no real model comes
near. Every contender trains the same model on the same batches with the same optimizer in one process and one thread,
in turns, so that a slow moment of the machine meets all of them; ratios are taken within a turn. At the end all of them
must have arrived at the same parameters.
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import lightning as L
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_accum import GradientAccumulation

Batch = dict[str, Tensor]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SAME_PARAMETERS = 1e-6  # float32: the contenders round in different orders over hundreds of steps


@dataclass(frozen=True)
class Work:
    """What every contender does: ``num_micro_batches`` batches, an AdamW step after each ``factor`` of them."""

    num_micro_batches: int
    factor: int
    clock: Callable[[], float]

    def make_network(self) -> nn.Linear:
        torch.manual_seed(0)
        return nn.Linear(32, 8)

    def make_optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(network.parameters(), lr=1e-3)

    def make_loader(self) -> DataLoader:
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(self.num_micro_batches, 4, 32, generator=generator)
        labels = torch.randint(0, 8, (self.num_micro_batches, 4), generator=generator)
        batches = [{"input": x, "mask": y} for x, y in zip(inputs, labels, strict=True)]
        return DataLoader(batches, batch_size=None)


@dataclass(frozen=True)
class Outcome:
    """Seconds for all micro-batches, start-up not counted, and the parameters after the last step."""

    seconds: float
    parameters: Tensor


def compute_loss(network: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(network(batch["input"]), batch["mask"], ignore_index=255)


def flatten(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def run_by_hand(work: Work) -> Outcome:
    network, loader = work.make_network(), work.make_loader()
    optimizer = work.make_optimizer(network)
    started = work.clock()
    for index, batch in enumerate(loader, start=1):
        (compute_loss(network, batch) / work.factor).backward()
        if index % work.factor == 0:
            optimizer.step()
            optimizer.zero_grad()
    return Outcome(work.clock() - started, flatten(network))


def run_accelerate(work: Work) -> Outcome:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=work.factor)
    network = work.make_network()
    prepared, optimizer, loader = accelerator.prepare(network, work.make_optimizer(network), work.make_loader())
    started = work.clock()
    for batch in loader:
        with accelerator.accumulate(prepared):
            accelerator.backward(compute_loss(prepared, batch))
            optimizer.step()
            optimizer.zero_grad()
    return Outcome(work.clock() - started, flatten(network))


class Module(L.LightningModule):
    def __init__(self, work: Work) -> None:
        super().__init__()
        self.network = work.make_network()
        self.work = work

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return compute_loss(self.network, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.work.make_optimizer(self.network)


class Stopwatch(L.Callback):
    """Measures from the start of training to its end: the loop, not what the Trainer sets up around it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seconds = -self.clock()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seconds += self.clock()


def run_trainer(work: Work, *, factor: int, callbacks: Iterable[L.Callback]) -> Outcome:
    module, stopwatch = Module(work), Stopwatch(work.clock)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        accumulate_grad_batches=factor,
        callbacks=[*callbacks, stopwatch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, work.make_loader())
    return Outcome(stopwatch.seconds, flatten(module.network))


def run_lightning(work: Work) -> Outcome:
    return run_trainer(work, factor=work.factor, callbacks=[])


def run_lightning_with_callback(work: Work) -> Outcome:
    """Lightning calls a callback's hooks whether they do anything or not: a price that every callback has."""
    return run_trainer(work, factor=work.factor, callbacks=[L.Callback()])


def run_ours(work: Work) -> Outcome:
    return run_trainer(work, factor=1, callbacks=[GradientAccumulation(work.factor)])


def run_ours_pixels(work: Work) -> Outcome:
    return run_trainer(work, factor=1, callbacks=[GradientAccumulation(work.factor, weight="pixels")])


CONTENDERS: dict[str, Callable[[Work], Outcome]] = {
    "by hand": run_by_hand,
    "Lightning's own": run_lightning,
    "+ empty callback": run_lightning_with_callback,
    "accelerate": run_accelerate,
    "ours, samples": run_ours,
    "ours, pixels": run_ours_pixels,
}
REFERENCE, BY_HAND = "Lightning's own", "by hand"


def measure(work: Work, repeats: int) -> dict[str, list[Outcome]]:
    """Run every contender ``repeats`` times, in a new order each time; one uncounted turn first warms up."""
    outcomes: dict[str, list[Outcome]] = {name: [] for name in CONTENDERS}
    shuffle = random.Random(0)
    for turn in track(range(repeats + 1), "measuring", console=Console(stderr=True), transient=True):
        for name in shuffle.sample(list(CONTENDERS), len(CONTENDERS)):
            gc.collect()
            outcome = CONTENDERS[name](work)
            if turn:
                outcomes[name].append(outcome)
    return outcomes


def largest_difference(outcomes: dict[str, list[Outcome]]) -> float:
    """Return how far any contender's last parameters are from the reference's."""
    wanted = outcomes[REFERENCE][0].parameters
    return max(float((one.parameters - wanted).abs().max()) for ones in outcomes.values() for one in ones)


def find_ratios(outcomes: dict[str, list[Outcome]], name: str, reference: str) -> list[float]:
    """Return, turn by turn, the time of ``name`` over the time of ``reference``."""
    pairs = zip(outcomes[name], outcomes[reference], strict=True)
    return [one.seconds / other.seconds for one, other in pairs]


def spread(values: list[float]) -> str:
    """Return the median and the quartiles as text."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def make_table(outcomes: dict[str, list[Outcome]], work: Work) -> Table:
    """Return medians and quartiles of the ratios within each turn, and the ratio of the fastest turns."""
    num_turns = len(outcomes[REFERENCE])
    caption = f"{num_turns} turns of {work.num_micro_batches} micro-batches, factor {work.factor}: median (quartiles)"
    table = Table(caption=caption)
    table.add_column("", no_wrap=True)
    for heading in ("µs", "to Lightning", "fastest to\nfastest", "to by hand"):
        table.add_column(heading, justify="right", no_wrap=True)
    fastest = {name: min(one.seconds for one in ones) for name, ones in outcomes.items()}
    for name, ones in outcomes.items():
        cost = 1e6 * statistics.median(one.seconds for one in ones) / work.num_micro_batches
        to_lightning, to_hand = (spread(find_ratios(outcomes, name, other)) for other in (REFERENCE, BY_HAND))
        table.add_row(name, f"{cost:.0f}", to_lightning, f"{fastest[name] / fastest[REFERENCE]:.2f}", to_hand)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=41, help="turns that count")
    parser.add_argument("--micro-batches", type=int, default=256, help="micro-batches of a turn")
    parser.add_argument("--factor", type=int, default=8, help="micro-batches to an optimizer step; divides the above")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a busy machine")
    arguments = parser.parse_args()
    if arguments.micro_batches % arguments.factor:
        parser.error(f"--micro-batches {arguments.micro_batches} is not a multiple of --factor {arguments.factor}")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    work = Work(arguments.micro_batches, arguments.factor, CLOCKS[arguments.clock])
    outcomes = measure(work, arguments.repeats)
    Console().print(make_table(outcomes, work))
    difference = largest_difference(outcomes)
    print(f"largest difference between final parameters: {difference:.1e} (at most {SAME_PARAMETERS:.0e} allowed)")
    return int(difference > SAME_PARAMETERS)


if __name__ == "__main__":
    sys.exit(main())
