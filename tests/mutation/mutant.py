"""A deliberate small mistake in the package's source, and the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass

WINDOWS = "tests/cases/test_windows.py::"
ENDINGS = "tests/cases/test_endings.py::"
WEIGHTS = "tests/cases/test_weights.py::"
SKIPS = "tests/cases/test_skips.py::"
LOGGING = "tests/cases/test_logging.py::"
STEPS = "tests/cases/test_steps.py::"
SCHEDULES = "tests/cases/test_schedules.py::"
IDENTITY = "tests/cases/test_against_lightning.py::"
SETTINGS = "tests/cases/test_configuration.py::"
PROCESSES = "tests/distributed/test_processes.py::"

SHORT_WINDOW = WINDOWS + "test_short_last_window_divides_by_what_it_holds"
SHORT_BATCH = WINDOWS + "test_short_last_batch_weighs_what_it_holds"
TABLE = PROCESSES + "test_training_on_processes_equals_the_real_large_batch"


@dataclass(frozen=True)
class Mutant:
    """One mistake: ``old`` stands exactly once in ``file`` and becomes ``new``; one of ``killers`` must then fail.

    ``is_slow`` leaves it out of the selection that runs by default.
    """

    name: str
    file: str
    old: str
    new: str
    killers: tuple[str, ...]
    is_slow: bool = False

    def apply(self, source: str) -> str:
        """Return the source with the mistake in it; fail if there is no, or more than one, place for it."""
        count = source.count(self.old)
        assert count == 1, f"mutant {self.name!r}: its text stands {count} times in {self.file}; bring it up to date"
        return source.replace(self.old, self.new)
