"""Everything that accumulation remembers, as one value.

Pure: knows neither Lightning nor processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from lightning_accum.errors import expected
from lightning_accum.weighting import MAX_TERMS
from lightning_accum.window import OpenWindow


def _zeros() -> list[float]:
    return [0.0] * MAX_TERMS


@dataclass
class AccumulationState:
    """The progress of a training and its open window; saved whole in a checkpoint, as plain values.

    Attributes:
        num_optimizer_steps: updates made; moves when a window closes with an update.
        num_micro_steps: micro-batches begun on this rank; moves when one begins.
        num_samples: samples over all ranks in closed windows; moves when a window closes.
        num_items: weight over all ranks in closed windows; moves when a window closes.
        num_empty_windows: windows without any valid item, after which no update was made.
        num_unstepped_windows: windows whose step the user's own ``optimizer_step`` left out.
        num_dropped_windows: short windows thrown away under ``epoch_end="drop"``.
        references: the reference weight of each loss term (0: not known yet): the typical weight of the last window;
            on one rank the first weight of the open one.
        window: the open window, or ``None`` between two.
        weights: weight of the open window on this rank, for each loss term.
        num_window_samples: samples of the open window on this rank.
        num_contributing: micro-batches of the open window on this rank that weighed more than nothing.

    Example:
        >>> state = AccumulationState(num_optimizer_steps=3, window=OpenWindow(first=8, target=4.0, factor=4))
        >>> AccumulationState.from_dict(state.to_dict()) == state
        True
    """

    num_optimizer_steps: int = 0
    num_micro_steps: int = 0
    num_samples: float = 0.0
    num_items: float = 0.0
    num_empty_windows: int = 0
    num_unstepped_windows: int = 0
    num_dropped_windows: int = 0
    references: list[float] = field(default_factory=_zeros)
    window: OpenWindow | None = None
    weights: list[float] = field(default_factory=_zeros)
    num_window_samples: float = 0.0
    num_contributing: float = 0.0

    def add(self, weights: list[float], num_samples: float) -> None:
        """Add a micro-batch of the given weights, one for each loss term, to the open window."""
        for term, weight in enumerate(weights):
            self.weights[term] += weight
        self.num_window_samples += num_samples
        self.num_contributing += any(weights)

    def clear_window(self) -> None:
        """Forget the open window and its sums."""
        self.window = None
        self.clear_sums()

    def clear_sums(self) -> None:
        """Forget what the open window's micro-batches added, but not the window."""
        self.weights = _zeros()
        self.num_window_samples = self.num_contributing = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dict of numbers, lists and dicts."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> AccumulationState:
        """Return the state that :meth:`to_dict` saved; fields it does not name keep their default.

        Raises:
            ConfigError: for a field that this version does not know.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(saved) - known):
            do = "It was saved by a newer lightning_accum: update, or drop the callback's state."
            raise expected(f"a saved state with fields among {sorted(known)}", unknown, "load_state_dict", do)
        values = dict(saved)
        if values.get("window") is not None:
            values["window"] = OpenWindow(**values["window"])
        return cls(**values)
