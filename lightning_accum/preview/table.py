"""A preview as a Rich table, one row a stage, and what a reader of it should be told."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from lightning_accum.preview.windows import Preview, PreviewStage, make_stages


def make_table(preview: Preview, learning_rates: Sequence[float] | None = None, max_rows: int = 16) -> Table:
    """Return a table of the preview's stages: when each begins and what its windows hold.

    Args:
        preview: the windows.
        learning_rates: of each optimizer step; shown at the first step of each stage.
        max_rows: a long ramp's neighbouring stages are merged, so that there are at most so many rows.

    Example:
        >>> from lightning_accum.preview import make_preview
        >>> table = make_table(make_preview("0:1, 2:4", batches_per_epoch=10, num_epochs=4, batch_size=2))
        >>> {column.header: list(column.cells) for column in table.columns}["factor"]
        ['1', '4']
        >>> table.columns[2].header, table.columns[2].footer
        ('steps', '26')
    """
    stages = make_stages(preview, max_rows)
    rows = [_describe(stage, preview, learning_rates) for stage in stages]
    totals = {
        "from step": "total",
        "steps": f"{preview.num_optimizer_steps:,}",
        "short": f"{sum(stage.num_short for stage in stages):,}",
        "dropped": f"{sum(stage.num_dropped for stage in stages):,}",
        "samples": f"{preview.num_samples:,}",
    }
    hidden = {name for name in ("short", "dropped") if totals[name] == "0"}
    table = Table(show_footer=True, footer_style="bold")
    for name in rows[0]:
        if name not in hidden:
            table.add_column(name, totals.get(name, ""), justify="right")
    for row in rows:
        table.add_row(*(cell for name, cell in row.items() if name not in hidden))
    return table


def make_notes(preview: Preview) -> list[str]:
    """Return what should be known about the windows beside their numbers, a sentence each.

    Example:
        >>> from lightning_accum.preview import make_preview
        >>> for note in make_notes(make_preview(30, unit="samples", batches_per_epoch=10, num_epochs=1, batch_size=4)):
        ...     print(note)
        30 samples asked for, 32 held: one micro-batch has 4 over all ranks.
        1 of 2 windows is short, where an epoch or training ends; it divides by what it holds.
    """
    return [*_note_indivisible(preview), *_note_short(preview), *_note_dropped(preview), *_note_unreached(preview)]


def _describe(stage: PreviewStage, preview: Preview, learning_rates: Sequence[float] | None) -> dict[str, str]:
    per_batch = preview.samples_per_micro_batch
    row = {
        "from step": f"{stage.first_optimizer_step:,}",
        "epoch": f"{stage.first_epoch:,}",
        "steps": f"{stage.num_optimizer_steps:,}",
        "factor": _span(stage.first_factor, stage.last_factor),
        "effective\nbatch size": _span(stage.first_factor * per_batch, stage.last_factor * per_batch),
        "short": f"{stage.num_short:,}",
        "dropped": f"{stage.num_dropped:,}",
        "samples": f"{stage.num_samples:,}",
    }
    if learning_rates is not None:
        has_step = stage.num_optimizer_steps > 0
        row["learning\nrate"] = f"{learning_rates[stage.first_optimizer_step]:.2e}" if has_step else ""
    return row


def _span(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} → {last:,}"


def _note_indivisible(preview: Preview) -> list[str]:
    per_batch = preview.samples_per_micro_batch
    asked = sorted({window.record.target for window in preview.windows if window.record.target % per_batch})
    if preview.unit == "micro_batches" or not asked:
        return []
    held = [-(-target // per_batch) * per_batch for target in (asked[0], asked[-1])]
    more = f" (and so on up to {asked[-1]:g} asked for, {held[-1]:g} held)" if len(asked) > 1 else ""
    reason = f"one micro-batch has {per_batch} over all ranks"
    return [f"{asked[0]:g} {preview.unit} asked for, {held[0]:g} held{more}: {reason}."]


def _note_short(preview: Preview) -> list[str]:
    num_short = sum(window.is_short and window.record.stepped for window in preview.windows)
    if not num_short:
        return []
    one = num_short == 1
    windows = f"{num_short:,} of {preview.num_optimizer_steps:,} windows {'is' if one else 'are'} short"
    return [f"{windows}, where an epoch or training ends; {'it divides' if one else 'each divides'} by what it holds."]


def _note_dropped(preview: Preview) -> list[str]:
    dropped = [window.record.num_micro_batches for window in preview.windows if not window.record.stepped]
    if not dropped:
        return []
    return [
        f"{sum(dropped):,} micro-batches a rank are thrown away in {len(dropped):,} windows that an epoch's end cut."
    ]


def _note_unreached(preview: Preview) -> list[str]:
    largest, reached = preview.schedule.max_value(), max(window.record.target for window in preview.windows)
    if largest is None or largest <= reached:
        return []
    return [f"The schedule goes up to {largest:g}, but training ends before it passes {reached:g}."]
