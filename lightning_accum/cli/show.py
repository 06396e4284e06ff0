"""What the app says: before training what will happen, and after it what came of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from rich.console import Console
from rich.table import Table
from typing_extensions import override

from lightning_accum._lightning import max_steps_of
from lightning_accum.callback import GradientAccumulation
from lightning_accum.errors import ConfigError, expected
from lightning_accum.norms import NormSwap
from lightning_accum.preview import Preview, make_figure, make_notes, make_preview, make_table


class Narrator(pl.Callback):
    """Prints what will happen when training begins, and a line after each validation.

    Before the first step that is the number of optimizer steps, their factors and effective batch sizes, as a table and
    as a picture.

    Args:
        accumulation: the callback whose schedule it is.
        swap: the callback that dealt with norms.
        output_dir: where ``schedule.png`` is written.
    """

    def __init__(self, accumulation: GradientAccumulation, swap: NormSwap, output_dir: str) -> None:
        self.accumulation = accumulation
        self.swap = swap
        self.output_dir = output_dir
        self.batch_sizes: set[int] = set()
        """Effective batch sizes of the windows so far, over all ranks."""

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        console = Console(markup=False, highlight=False)
        console.print(self.swap.report.summary)
        rules = self.accumulation.rules
        try:
            preview = preview_training(trainer, self.accumulation)
        except ConfigError as error:
            console.print(f"schedule {rules.schedule}; its steps are not known in advance: {error}")
            return
        console.print(describe_plan(preview, self.accumulation), style="bold")
        console.print(make_table(preview, max_rows=8))
        for note in make_notes(preview):
            console.print(f"  {note}")
        try:
            make_figure(preview).savefig(Path(self.output_dir) / "schedule.png")
        except ImportError as error:
            console.print(f"schedule.png was not drawn. {error}")

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        batch_size = trainer.callback_metrics.get("accumulation/effective_batch_size")
        if batch_size is not None:
            self.batch_sizes.add(int(batch_size))

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking or not trainer.is_global_zero:
            return
        shown = {"accumulation/loss": "loss", "val/loss": "val loss", "val/accuracy": "accuracy", "val/mIoU": "mIoU"}
        metrics = trainer.callback_metrics
        values = [f"{short} {float(metrics[name]):.3f}" for name, short in shown.items() if name in metrics]
        line = f"epoch {trainer.current_epoch}, step {trainer.global_step}: {', '.join(values)}"
        Console(markup=False, highlight=False).print(line)


def preview_training(trainer: pl.Trainer, accumulation: GradientAccumulation) -> Preview:
    """Return the windows of a training that is about to begin.

    Raises:
        ConfigError: if they cannot be known in advance.
    """
    rules = accumulation.rules
    loader = trainer.train_dataloader
    num_batches, num_epochs = trainer.num_training_batches, trainer.max_epochs
    if isinstance(num_batches, float) or num_epochs is None or num_epochs < 1:
        raise expected("a number of batches and epochs", (num_batches, num_epochs), "the training ahead")
    return make_preview(
        rules.schedule,
        batches_per_epoch=num_batches,
        num_epochs=num_epochs,
        batch_size=getattr(loader, "batch_size", None) or 1,
        world_size=trainer.world_size,
        unit=rules.unit,
        epoch_end=rules.epoch_end,
        max_steps=max_steps_of(trainer),
    )


def describe_plan(preview: Preview, accumulation: GradientAccumulation) -> str:
    """Return one line that says how many steps there will be and how large.

    Example:
        >>> from lightning_accum.preview import make_preview
        >>> preview = make_preview("0:4, 1:8", batches_per_epoch=16, num_epochs=2, batch_size=2)
        >>> describe_plan(preview, GradientAccumulation(weight="equal"))
        '6 optimizer steps of 4 to 8 micro-batches: effective batch size 8 to 16, weighed by Equal()'
    """
    sizes = [record.effective_batch_size for record in preview.records]
    factors = [record.num_micro_batches for record in preview.records]
    return (
        f"{preview.num_optimizer_steps} optimizer steps of {_span(factors)} micro-batches: effective batch size "
        f"{_span(sizes)}, weighed by {accumulation.weight}"
    )


def _span(values: Collection[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def make_result_table(metrics: Mapping[str, float], num_optimizer_steps: int, batch_sizes: Collection[int]) -> Table:
    """Return a table of a training's results.

    Args:
        metrics: as logged; ``val/IoU/...`` are those of single classes.
        num_optimizer_steps: steps that were made.
        batch_sizes: effective batch sizes of the windows.

    Example:
        >>> table = make_result_table({"val/mIoU": 0.4, "val/IoU/Water": 0.9}, 10, [8, 32])
        >>> [list(column.cells) for column in table.columns][0]
        ['mIoU', 'IoU of Water', 'optimizer steps', 'effective batch size']
    """
    parts = [part for part in ("val", "test") if any(name.startswith(f"{part}/") for name in metrics)]
    table = Table(title="Results", title_justify="left")
    table.add_column("")
    for part in parts:
        table.add_column({"val": "validation", "test": "test"}[part], justify="right")
    names = list(dict.fromkeys(name.split("/", 1)[1] for name in metrics if name.split("/")[0] in parts))
    for name in sorted(names, key=lambda name: name.startswith("IoU/")):
        cells = [f"{metrics[f'{part}/{name}']:.3f}" if f"{part}/{name}" in metrics else "" for part in parts]
        table.add_row(name.replace("IoU/", "IoU of "), *cells)
    table.add_section()
    table.add_row("optimizer steps", str(num_optimizer_steps))
    table.add_row("effective batch size", _span(batch_sizes) if batch_sizes else "unknown")
    return table
