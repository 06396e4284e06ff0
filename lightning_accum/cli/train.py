"""``lightning-accum train``: a Hydra app. Runs from any folder, and as ``python -m lightning_accum.cli.train``."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from lightning_accum.cli import conf_dir
from lightning_accum.cli.config import register_resolvers
from lightning_accum.errors import ConfigError

_FULL_ERROR: Final = "HYDRA_FULL_ERROR"
_USERS_ERRORS: Final = (ConfigError, HydraException, OmegaConfBaseException, ImportError)
_EXTRAS: Final = {
    "PIL": "vision",
    "segmentation_models_pytorch": "vision",
    "timm": "vision",
    "torchvision": "vision",
    "tensorboard": "report",
}
_SCHEDULE: Final = re.compile(r"(?P<key>[\w.]*\bschedule)=(?P<text>(?![\"'\[{]|choice\().*[,:(].*)")


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the arguments say, and return the exit code: 0, or 2 for a setting that cannot be used.

    Args:
        argv: Hydra's arguments and overrides; None takes those of the process.
    """
    arguments = quote_schedules(sys.argv[1:] if argv is None else argv)
    wants_traceback = _FULL_ERROR in os.environ
    register_resolvers()
    app = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="train")(_run)
    with _as_process_of_its_own(arguments):
        try:
            app()
        except _Refused as refused:  # a single run's
            error: BaseException = refused.error
        except _USERS_ERRORS as composing_or_sweep:
            error = composing_or_sweep
        else:
            return 0
    if wants_traceback:
        raise error
    print(f"lightning-accum train: {explain(error)}", file=sys.stderr)
    return 2


class _Refused(BaseException):
    """Carries an error past Hydra, which says more about exceptions than helps."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _run(config: DictConfig) -> float | None:
    from lightning_accum.cli.job import run_training  # here, so that --help need not wait for it

    try:
        with _silenced():
            return run_training(config).objective
    except _USERS_ERRORS as error:
        if HydraConfig.get().mode == RunMode.MULTIRUN:  # let the sweep's other jobs run
            raise
        raise _Refused(error) from error


def quote_schedules(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with quotes around a schedule that the shell took them from.

    ``accumulation.schedule="0:1,4:8"`` arrives without its quotes, and Hydra would take the comma for a sweep. Where a
    sweep is asked for, a comma means one, and arguments stay as they are.

    Example:
        >>> quote_schedules(["accumulation.schedule=0:1,4:8", "seed=1,2"])
        ['accumulation.schedule="0:1,4:8"', 'seed=1,2']
        >>> quote_schedules(["-m", "accumulation.schedule=4,8"])
        ['-m', 'accumulation.schedule=4,8']
    """
    if {"-m", "--multirun"} & set(arguments):
        return list(arguments)
    found = [_SCHEDULE.fullmatch(argument) for argument in arguments]
    return [f'{hit["key"]}="{hit["text"]}"' if hit else text for hit, text in zip(found, arguments, strict=True)]


def explain(error: BaseException) -> str:
    """Return what was wrong with the settings, in a line or a few and without Hydra's own words around it.

    Example:
        >>> explain(ModuleNotFoundError("No module named 'timm'", name="timm"))
        "timm is not installed. It comes with: pip install 'lightning-accum[vision]'"
    """
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    for cause in causes:
        if isinstance(cause, ConfigError):
            return str(cause)
    root = causes[-1]
    package = _find_missing_package(root) if isinstance(root, ImportError) else ""
    if package:
        return f"{package} is not installed. It comes with: pip install 'lightning-accum[{_EXTRAS[package]}]'"
    if isinstance(error, InstantiationException) and root is not error:
        key = re.search(r"full_key: (\S+)", str(error))
        return f"{root} (in {key[1]})" if key else str(root)
    text = "\n".join(dict.fromkeys(str(cause).strip() for cause in causes)).split("\nConfig search path")[0]
    lines = [line for line in text.splitlines() if line.strip() and not re.match(r" *(full_key:|object_type=)", line)]
    return "\n".join(lines)


def _find_missing_package(error: ImportError) -> str:
    """Return the package that an import failed for, if one of our extras installs it."""
    words = {(error.name or "").split(".")[0], *re.findall(r"\w+", str(error))}
    return next((name for name in _EXTRAS if name in words), "")


@contextmanager
def _as_process_of_its_own(arguments: list[str]) -> Iterator[None]:
    """Let Hydra, and Lightning when it starts further ranks, see the arguments as those of this very file.

    Hydra's own report of errors is switched off meanwhile, so that errors arrive where they can be told in a line.
    """
    argv, full_error = sys.argv, os.environ.get(_FULL_ERROR)
    sys.argv = [os.path.abspath(__file__), *arguments]
    os.environ[_FULL_ERROR] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ[_FULL_ERROR]
        else:
            os.environ[_FULL_ERROR] = full_error


@contextmanager
def _silenced() -> Iterator[None]:
    """Silence what Lightning advises against and the app does on purpose, and what the app says itself."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")  # cutting a crop takes no time
        warnings.filterwarnings("ignore", message=".*exists and is not empty.*")  # Hydra has made the folder
        warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated.*")  # within Lightning itself
        if not HydraConfig.get().verbose:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            logger.setLevel(level)


if __name__ == "__main__":
    sys.exit(main())
