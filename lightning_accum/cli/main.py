"""``lightning-accum``: one program, a few commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from lightning_accum import __version__

_DESCRIPTION = "Gradient accumulation for PyTorch Lightning that is exactly the large batch."
_EPILOG = """
commands:
  train      train a network; by default segmentation of satellite images that come with the package
  preview    show what an accumulation schedule will do, as a table and a picture, before any training

examples:
  lightning-accum train
  lightning-accum train experiment=earth_smoke
  lightning-accum train model=smp_unet precision=bf16-mixed 'accumulation.schedule="0:1, 4:8"'
  lightning-accum train -m experiment=earth_smoke accumulation=constant,linear
  lightning-accum preview --schedule "linear(8, 32, over=200 steps)" --batches-per-epoch 1500 --epochs 5

`lightning-accum COMMAND --help` explains a command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    Args:
        argv: the command and its arguments; None takes those of the process.

    Example:
        >>> main(["preview", "--schedule", "8", "--batches-per-epoch", "0"])  # and the error on stderr
        2
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in _COMMANDS:
        return _COMMANDS[arguments[0]](arguments[1:])
    parser = _make_parser()
    if arguments:
        parser.parse_args(arguments)  # --help and --version end here, anything unknown is an error
    parser.print_help()
    return 0


def _train(argv: Sequence[str]) -> int:
    from lightning_accum.cli.train import main as train  # takes seconds, and the others need not wait for it

    return train(argv)


def _preview(argv: Sequence[str]) -> int:
    from lightning_accum.cli.preview import main as preview

    return preview(argv)


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"train": _train, "preview": _preview}


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-accum",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=_COMMANDS, help="what to do", metavar="COMMAND")
    parser.add_argument("--version", action="version", version=f"lightning-accum {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
