"""The one form in which this package tells a user that an input is wrong."""

from __future__ import annotations


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
