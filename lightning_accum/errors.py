"""The one form in which this package tells a user that an input is wrong."""

from __future__ import annotations

from collections.abc import Mapping


class ConfigError(ValueError):
    """A setting, schedule, weight or batch that cannot be used as given."""


def expected(what: str, got: object, where: str = "", do: str = "") -> ConfigError:
    """Return the error that says what was expected, what came, where, and what to do.

    Args:
        what: what would have been right, as the end of "expected ...".
        got: the value that came; shown by its ``repr``.
        where: the argument, layer, rank or position that it concerns.
        do: a sentence that says what to do about it.

    Example:
        >>> raise expected("a whole number of at least 1", 0, where="Constant(value=...)", do="Give 1 to step always.")
        Traceback (most recent call last):
        ...
        lightning_accum.errors.ConfigError: expected a whole number of at least 1, but got 0 (in Constant(value=...)). \
Give 1 to step always.
    """
    place = f" (in {where})" if where else ""
    advice = f" {do}" if do else ""
    return ConfigError(f"expected {what}, but got {got!r}{place}.{advice}")


def check_counts(counts: Mapping[str, float], where: str = "") -> None:
    """Raise :class:`ConfigError` unless each of the named counts is at least 1.

    Args:
        counts: values by the name of their argument.
        where: the class or function that they are arguments of.

    Example:
        >>> check_counts({"batch_size": 2, "num_crops": 0}, "EarthDataModule")
        Traceback (most recent call last):
        ...
        lightning_accum.errors.ConfigError: expected a whole number of at least 1, but got 0 (in \
EarthDataModule(num_crops=...)).
    """
    for name, value in counts.items():
        if value < 1:
            raise expected("a whole number of at least 1", value, f"{where}({name}=...)" if where else f"{name}=")
