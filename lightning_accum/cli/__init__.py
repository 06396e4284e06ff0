"""The command line: ``lightning-accum train`` and ``lightning-accum preview``."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """Return the folder with the Hydra configuration: within the package if installed, else that of the repository.

    Raises:
        FileNotFoundError: the installation lacks it.

    Example:
        >>> (conf_dir() / "train.yaml").exists()
        True
    """
    for folder in (PACKAGE / "conf", PACKAGE.parent / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise FileNotFoundError(f"No conf/train.yaml beside or within {PACKAGE}: install lightning-accum again.")
