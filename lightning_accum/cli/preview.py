"""``lightning-accum preview``: look at an accumulation schedule before any training."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from rich.console import Console

from lightning_accum.errors import ConfigError, expected
from lightning_accum.preview import Preview, make_figure, make_learning_rates, make_notes, make_preview, make_table
from lightning_accum.preview.learning_rate import LearningRateShape
from lightning_accum.window import EpochEnd, Unit

_EPILOG = """
schedules:
  8                                    the same throughout
  "0:1, 4:8"                           from epoch 0 on 1, from epoch 4 on 8
  "0 steps: 1, 500 steps: 4"           in stages of steps, micro_steps, epochs, samples, items or %
  "linear(8, 32, over=2000 steps)"     a ramp; so too cosine(...), exponential(...); further arguments are
                                       delay=500 steps, multiple=8, round_to=power_of_two
  "8 for 500 steps, then 16"           one schedule after the other

example:
  lightning-accum preview --schedule "linear(8, 32, over=200 steps)" --batches-per-epoch 1500 --epochs 5 \\
      --batch-size 2 --lr 3e-4 --lr-schedule onecycle
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table of the schedule's stages, write a picture, and return the exit code.

    Args:
        argv: the arguments after ``preview``; None takes those of the process.

    Example:
        >>> main(["--schedule", "8", "--batches-per-epoch", "0"])  # and the error on stderr
        2
    """
    arguments = _make_parser().parse_args(argv)
    try:
        preview = make_preview(
            arguments.schedule,
            batches_per_epoch=arguments.batches_per_epoch,
            num_epochs=arguments.epochs,
            batch_size=arguments.batch_size,
            world_size=arguments.world_size,
            unit=arguments.unit,
            epoch_end=arguments.epoch_end,
            max_steps=arguments.max_steps,
        )
        learning_rates = _make_learning_rates(arguments.lr, arguments.lr_schedule, preview)
    except ConfigError as error:
        print(f"lightning-accum preview: {error}", file=sys.stderr)
        return 2
    _print(Console(), preview, learning_rates)
    return _write(arguments.output, preview, learning_rates)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-accum preview",
        description="Show what an accumulation schedule does, as a table and a picture, before any training.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--schedule", required=True, help="the schedule, see below")
    parser.add_argument("--batches-per-epoch", type=int, required=True, help="micro-batches an epoch on each rank")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of training (default: 1)")
    parser.add_argument("--batch-size", type=int, default=1, help="samples in a micro-batch on one rank (default: 1)")
    parser.add_argument("--world-size", type=int, default=1, help="ranks (default: 1)")
    parser.add_argument(
        "--unit", choices=get_args(Unit), default="micro_batches", help="what the schedule's values count"
    )
    parser.add_argument(
        "--epoch-end", choices=get_args(EpochEnd), default="flush", help="what becomes of a short last window"
    )
    parser.add_argument("--max-steps", type=int, help="optimizer steps after which training ends")
    parser.add_argument("--lr", type=float, help="largest learning rate, to be drawn too")
    parser.add_argument("--lr-schedule", choices=get_args(LearningRateShape), help="its curve (default: constant)")
    parser.add_argument("--output", type=Path, default=Path("preview.png"), help="the picture (default: preview.png)")
    return parser


def _make_learning_rates(peak: float | None, shape: LearningRateShape | None, preview: Preview) -> list[float] | None:
    if peak is None:
        if shape is not None:
            raise expected("--lr beside --lr-schedule", None, where="--lr", do="Give the largest learning rate.")
        return None
    return make_learning_rates(shape or "constant", peak, preview.num_optimizer_steps)


def _print(console: Console, preview: Preview, learning_rates: list[float] | None) -> None:
    console.print(f"Schedule: [bold]{preview.schedule}[/bold] in {preview.unit.replace('_', '-')}", highlight=False)
    console.print(make_table(preview, learning_rates))
    for note in make_notes(preview):
        console.print(f"- {note}", highlight=False)


def _write(path: Path, preview: Preview, learning_rates: list[float] | None) -> int:
    try:
        figure = make_figure(preview, learning_rates)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (ImportError, ValueError, OSError) as error:  # no Matplotlib, an unknown file type, no right to write
        print(f"lightning-accum preview: no picture: {error}", file=sys.stderr)
        return 1
    print(f"Wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
