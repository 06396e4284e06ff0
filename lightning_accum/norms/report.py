"""What a swap of normalisation layers found and did, as text and as a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Finding:
    """One normalisation layer.

    Args:
        names: every place in the model where this one layer stands; more than one if it is shared.
        kind: its class before.
        num_channels: the channels that it normalises.
        replacement: what stands there now; None if the layer was kept.
        reason: why that was done.
    """

    names: tuple[str, ...]
    kind: str
    num_channels: int
    replacement: str | None
    reason: str


@dataclass(frozen=True)
class SwapReport:
    """All layers that were found, in the model's order.

    ``print(report)`` and ``rich.print(report)`` show a table; ``report.summary`` is one line.

    Example:
        >>> layer = Finding(("stem.bn",), "BatchNorm2d", 64, "GroupNorm(32 groups of 2)", "statistics of each sample")
        >>> SwapReport("group", (layer,)).summary
        'norms, policy group: 1 x BatchNorm2d -> GroupNorm'
    """

    policy: str
    findings: tuple[Finding, ...]

    @property
    def num_swapped(self) -> int:
        """Layers that were replaced; a shared one counts once."""
        return sum(finding.replacement is not None for finding in self.findings)

    @property
    def kept(self) -> tuple[Finding, ...]:
        """Layers that were found and left as they are."""
        return tuple(finding for finding in self.findings if finding.replacement is None)

    @property
    def summary(self) -> str:
        """One line: how many of which kind became what."""
        kinds = Counter((found.kind, found.replacement.split("(")[0] if found.replacement else "kept")
                        for found in self.findings)  # fmt: skip
        parts = [f"{number} x {kind} -> {now}" for (kind, now), number in kinds.items()]
        return f"norms, policy {self.policy}: {', '.join(parts) or 'no batch normalisation found'}"

    def __rich__(self) -> Table:
        table = Table(title=self.summary, title_justify="left")
        for heading in ("layer", "was", "is now", "why"):
            table.add_column(heading, overflow="fold")
        table.add_column("channels", justify="right")
        for found in self.findings:
            name = ", ".join(found.names)
            table.add_row(name, found.kind, found.replacement or "kept", found.reason, str(found.num_channels))
        return table

    def __str__(self) -> str:
        console = Console(width=120, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return captured.get()
