"""One process of a distributed test: ``python -m tests.distributed.worker FOLDER TASK...``, its rank in ``LOCAL_RANK``.

Runs the tasks one after the other in one process group and leaves ``<number>.<rank>.pt`` in the folder for each.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from lightning_accum import GradientAccumulation
from tests.distributed.table import TABLE, Combination
from tests.harness import Scalar, make_loader, singles, train
from tests.jobs import JobModule
from tests.large_batch import OPTIMIZERS

RANK = int(os.environ["LOCAL_RANK"])
WORLD_SIZE = int(os.environ["ACCUM_WORLD_SIZE"])

STRATEGIES: dict[str, Any] = {
    "ddp": lambda: "ddp",
    "ddp_accum": lambda: "ddp_accum",
    "auto_accum": lambda: "auto_accum",
    "ddp_unused": lambda: "ddp_find_unused_parameters_true",
    "ddp_bucket_view": lambda: DDPStrategy(gradient_as_bucket_view=True, process_group_backend="gloo"),
}


class StopAfter(L.Callback):
    """Stops training after a batch."""

    def __init__(self, batch_idx: int) -> None:
        self.batch_idx = batch_idx

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.should_stop = trainer.should_stop or batch_idx == self.batch_idx


def run(module: Any, loader: Any, accumulation: Any, strategy: Any, **options: Any) -> Any:
    """Train on this rank's own loader."""
    return train(
        module,
        loader,
        accumulation,
        strategy=strategy,
        devices=WORLD_SIZE,
        use_distributed_sampler=False,
        **options,
    )


def run_combination(combination: Combination) -> dict[str, Any]:
    """Train one combination of the table and return what this rank saw."""
    job = combination.get_job()
    silent = {index for rank, index in combination.silent if rank == RANK}
    module = JobModule(job, combination.make_net(), OPTIMIZERS[combination.optimizer], silent)
    accumulation = GradientAccumulation(
        combination.schedule, unit=combination.unit, weight=job.weight, epoch_end=combination.epoch_end
    )
    stop = [] if combination.stop_after is None else [StopAfter(combination.stop_after)]
    record = run(
        module,
        make_loader(combination.batches(RANK), combination.with_length),
        accumulation,
        STRATEGIES[combination.strategy](),
        last=stop,
        log=True,
        max_epochs=combination.num_epochs,
        max_steps=combination.max_steps,
        gradient_clip_val=combination.clip,
        gradient_clip_algorithm=combination.algorithm,
    )
    return {
        "parameters": record.parameters,
        "batch_of_step": record.batch_of_step,
        "global_step": record.global_step,
        "losses": [value for _, value in record.points("accumulation/loss")],
        "effective_batch_sizes": [value for _, value in record.points("accumulation/effective_batch_size")],
        "num_empty_windows": accumulation.state.num_empty_windows,
        "num_samples": accumulation.state.num_samples,
    }


def run_unequal_items() -> list[float]:
    """Rank 0 holds [1] x 5 and [2], rank 1 holds [13] and [1, 1, 1]: their mean is 2.3."""
    batches = [[torch.ones(5), torch.tensor([2.0])], [torch.tensor([13.0]), torch.ones(3)]][RANK]
    return run(Scalar(), batches, 2, "ddp").gradients


def run_unequal_items_of_lightning_alone() -> list[float]:
    """The same without the callback: the mean of four means."""
    batches = [[torch.ones(5), torch.tensor([2.0])], [torch.tensor([13.0]), torch.ones(3)]][RANK]
    return run(Scalar(), batches, None, "ddp", accumulate_grad_batches=2).gradients


class CountsReductions(Scalar):
    """Counts the reductions of each bucket, and notes at each forward whether DDP will reduce after it."""

    def __init__(self) -> None:
        super().__init__()
        self.reductions: dict[int, int] = {}
        self.syncs: list[bool] = []

    def on_train_start(self) -> None:
        def hook(state, bucket):  # torch reads the annotations of a hook, and takes none that is a text
            self.reductions[bucket.index()] = self.reductions.get(bucket.index(), 0) + 1
            return allreduce_hook(state, bucket)

        self.trainer.strategy.model.register_comm_hook(None, hook)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.syncs.append(self.trainer.strategy.model.require_backward_grad_sync)
        return super().training_step(batch, batch_idx)


def run_reductions(strategy: str, epoch_end: str = "flush", num_batches: int = 12, factor: int = 4) -> dict[str, Any]:
    """Count DDP's reductions."""
    module = CountsReductions()
    accumulation = GradientAccumulation(factor, epoch_end=epoch_end)
    record = run(module, singles(num_batches), accumulation, strategy)
    return {"reductions": module.reductions, "syncs": module.syncs, "gradients": record.gradients}


def run_collectives() -> list[int]:
    """Count the all-reduces that are not DDP's, for 12 and for 24 micro-batches in windows of four, and of twelve."""
    counts, original = [], dist.all_reduce

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[-1] += 1
        return original(*args, **kwargs)

    dist.all_reduce = counted
    try:
        for num_batches, factor in ((12, 4), (24, 4), (24, 12)):
            counts.append(0)
            run(Scalar(), singles(num_batches), factor, "ddp")
    finally:
        dist.all_reduce = original
    return counts


def run_one_micro_batch_a_rank() -> list[float]:
    """Four ranks, a window of one: rank r holds the numbers that one rank alone would see at r, r + 4, ..."""
    return [p.item() for p in run(Scalar(lr=0.1), singles(12)[RANK::WORLD_SIZE], 1, "ddp").parameters]


def run_lost_loader() -> str:
    """A loader that yields ``None`` on one rank alone cannot be right: an error, not a hang."""
    try:
        batches: list[Any] = singles(8)
        batches[1] = None
        return repr(run(Scalar(), batches, 4, "ddp").gradients)
    except ValueError as error:
        return f"ValueError: {error}"


def run_dropping_collate() -> dict[str, Any]:
    """Windows of 8 samples over ranks from a loader whose ``collate_fn`` leaves bad samples out, as many do."""
    bad = -1.0
    data = [1.0, 2.0, 3.0, bad, 4.0, 5.0, 6.0, bad, 7.0, 8.0, 9.0, 10.0]
    loader = torch.utils.data.DataLoader(
        data, batch_size=2, collate_fn=lambda values: torch.tensor([value for value in values if value != bad])
    )
    record = run(Scalar(), loader, GradientAccumulation(8, unit="samples"), "ddp")
    return {"gradients": record.gradients, "batch_of_step": record.batch_of_step}


def run_badly(fails: bool) -> list[float]:
    """Fail, or never come back, on rank 1 only, while rank 0 waits for it in the reduction."""

    def step(module: Scalar, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if RANK == 1 and fails:
            raise RuntimeError("broken on purpose")
        if RANK == 1:
            time.sleep(3600)
        return module.w * batch.mean()

    return run(Scalar(step=step), singles(2), 2, "ddp").gradients


TASKS: dict[str, Any] = {
    **{name: lambda c=combination: run_combination(c) for name, combination in TABLE.items()},
    "unequal items": run_unequal_items,
    "unequal items of Lightning alone": run_unequal_items_of_lightning_alone,
    "reductions": lambda: run_reductions("ddp"),
    "reductions by name": lambda: run_reductions("ddp_accum"),
    "reductions, short tail": lambda: run_reductions("ddp", num_batches=10),
    "reductions, carry": lambda: run_reductions("ddp", "carry", num_batches=10),
    "reductions, drop": lambda: run_reductions("ddp", "drop", num_batches=10),
    "collectives": run_collectives,
    "one micro-batch a rank": run_one_micro_batch_a_rank,
    "None from the loader": run_lost_loader,
    "dropping collate": run_dropping_collate,
    "fail on rank 1": lambda: run_badly(fails=True),
    "hang on rank 1": lambda: run_badly(fails=False),
}


def leave(path: Path, result: Any) -> None:
    """Write a file that is there whole or not at all."""
    torch.save(result, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def main() -> None:
    torch.set_num_threads(1)
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    leave(folder / f"ready.{RANK}.pt", {})
    for number, name in enumerate(names):
        path = folder / f"{number}.{RANK}.pt"
        try:
            result = {"value": TASKS[name]()}
        except BaseException:
            result = {"error": traceback.format_exc()}
        leave(path, result)
        if "error" in result:  # the other ranks may wait for this one: the launcher starts all of them anew
            sys.exit(1)


if __name__ == "__main__":
    main()
