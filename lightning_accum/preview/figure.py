"""A preview as a picture. Matplotlib is imported when one is made."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning_accum.preview.windows import Preview, make_preview

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito (2008): told apart by every kind of colour vision.
_BLUE, _VERMILLION, _GREEN, _PURPLE = "#0072B2", "#D55E00", "#009E73", "#AA4A88"
_INK, _SOFT_INK, _FAINT = "#1F2328", "#656D76", "#E3E6EA"
_TITLE_SIZE, _TEXT_SIZE, _SMALL_SIZE = 10.5, 8.5, 7.5
_SUBTITLE_INCHES = 0.44
_MOST_EPOCH_LINES, _MOST_EPOCH_NAMES = 20, 8
_HEADROOM = 1.18  # the largest value stands so much below the top, and the names of the epochs above it


def make_figure(preview: Preview, learning_rates: Sequence[float] | None = None) -> Figure:
    """Return a picture: factor, effective batch size, optimizer steps, and the learning rate if it is given.

    Windows that are cut short or dropped are marked; thin lines part the epochs. Save the picture with
    ``figure.savefig("preview.png")``.

    Args:
        preview: the windows.
        learning_rates: of each optimizer step.

    Raises:
        ImportError: Matplotlib is not installed.

    Example:
        >>> from lightning_accum.preview import make_preview
        >>> figure = make_figure(make_preview("linear(1, 8, over=20 steps)", batches_per_epoch=100, num_epochs=2))
        >>> [axes.get_title(loc="left").splitlines()[0] for axes in figure.axes]
        ['Accumulation factor', 'Effective batch size', 'Optimizer steps']
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("A picture needs Matplotlib: pip install 'lightning-accum[report]'.") from error
    in_one_row = learning_rates is None
    figure = Figure(figsize=(12, 4.2) if in_one_row else (10, 7.4), dpi=150, layout="constrained")
    mosaic = "fbs" if in_one_row else "fb;rs"
    axes = figure.subplot_mosaic(mosaic, gridspec_kw={"wspace": 0.09, "hspace": 0.04})
    _draw_factor(axes["f"], preview)
    _draw_batch_size(axes["b"], preview)
    _draw_steps(axes["s"], preview)
    if learning_rates is not None:
        _draw_learning_rate(axes["r"], preview, learning_rates)
    _write_heading(figure, preview)
    return figure


def _draw_factor(axes: Axes, preview: Preview) -> None:
    windows = [window for window in preview.windows if window.record.stepped]
    factors = [window.planned_factor for window in windows]
    _draw_values(axes, factors, list(range(len(factors) + 1)), _BLUE)
    cut = [(step + 0.5, window.record.num_micro_batches) for step, window in enumerate(windows) if window.is_short]
    _mark(axes, cut, "o", _BLUE, "cut short")
    _finish(axes, "Accumulation factor", "micro-batches a step, on each rank")
    _finish_step_axis(axes, preview)


def _draw_batch_size(axes: Axes, preview: Preview) -> None:
    starts = [window.record.num_samples_before for window in preview.windows]
    edges = [*starts, starts[-1] + preview.windows[-1].record.effective_batch_size]
    sizes = [window.planned_factor * preview.samples_per_micro_batch for window in preview.windows]
    _draw_values(axes, sizes, edges, _VERMILLION)
    cut = [window.record for window in preview.windows if window.is_short]
    for stepped, marker, name in ((True, "o", "cut short"), (False, "x", "dropped")):
        points = [(r.num_samples_before, r.effective_batch_size) for r in cut if r.stepped is stepped]
        _mark(axes, points, marker, _VERMILLION, name)
    _finish(axes, "Effective batch size", "samples a step, over all ranks")
    _finish_sample_axis(axes, preview)


def _draw_steps(axes: Axes, preview: Preview) -> None:
    """Draw the steps made, and for comparison those of a training that has the last factor from its beginning."""
    seen, steps = _count_up(preview)
    last = preview.windows[-1].planned_factor
    if any(window.planned_factor != last for window in preview.windows):
        constant = make_preview(
            last,
            batches_per_epoch=preview.batches_per_epoch,
            num_epochs=preview.num_epochs,
            batch_size=preview.batch_size,
            world_size=preview.world_size,
            epoch_end=preview.epoch_end,
        )
        points = [point for point in zip(*_count_up(constant), strict=True) if point[0] <= seen[-1]]
        name = f"{points[-1][1]:,} with factor {last:,} throughout"
        axes.plot(*zip(*points, strict=True), color=_SOFT_INK, linewidth=1.2, linestyle=(0, (4, 3)), label=name)
    axes.plot(seen, steps, color=_GREEN, linewidth=2.2)
    _write(axes, f"{steps[-1]:,} steps", (seen[-1], steps[-1]), _GREEN)
    _finish(axes, "Optimizer steps", "made so far")
    _finish_sample_axis(axes, preview)


def _draw_learning_rate(axes: Axes, preview: Preview, learning_rates: Sequence[float]) -> None:
    axes.plot(range(len(learning_rates)), learning_rates, color=_PURPLE, linewidth=2.2)
    peak = max(range(len(learning_rates)), key=learning_rates.__getitem__)
    _write(
        axes, _short(learning_rates[peak]), (peak, learning_rates[peak]), _PURPLE, align="center" if peak else "left"
    )
    _finish(axes, "Learning rate", "of each optimizer step")
    axes.yaxis.set_major_formatter(lambda value, position: _short(value))
    _finish_step_axis(axes, preview)


def _draw_values(axes: Axes, values: Sequence[int], edges: Sequence[int], color: str) -> None:
    """Draw a value for each window as a staircase, and write the first and the last beside it."""
    axes.stairs(values, edges, baseline=None, color=color, linewidth=2.2)
    if values[0] != values[-1]:
        _write(axes, f"{values[0]:,}", (0, values[0]), color, align="left", below=values[-1] > values[0])
    _write(axes, f"{values[-1]:,}", (edges[-1], values[-1]), color)


def _mark(axes: Axes, points: Sequence[tuple[float, float]], marker: str, color: str, name: str) -> None:
    if not points:
        return
    face = color if marker == "x" else "white"
    x, y = zip(*points, strict=True)
    axes.plot(
        x,
        y,
        linestyle="none",
        marker=marker,
        markersize=4.5,
        markerfacecolor=face,
        color=color,
        label=name,
        clip_on=False,
        zorder=3,
    )


def _write(
    axes: Axes, text: str, point: tuple[float, float], color: str, align: str = "right", below: bool = False
) -> None:
    """Write ``text`` just above or below a point."""
    axes.annotate(
        text,
        point,
        xytext=(0, -5 if below else 4),
        textcoords="offset points",
        horizontalalignment=align,
        verticalalignment="top" if below else "bottom",
        color=color,
        fontsize=_TEXT_SIZE,
        fontweight="bold",
    )


def _finish(axes: Axes, title: str, subtitle: str) -> None:
    axes.set_title(title, loc="left", fontsize=_TITLE_SIZE, fontweight="bold", color=_INK, pad=20)
    axes.annotate(
        subtitle,
        (0, 1),
        xytext=(0, 7),
        xycoords="axes fraction",
        textcoords="offset points",
        color=_SOFT_INK,
        fontsize=_TEXT_SIZE,
    )
    axes.set_ylim(0, _HEADROOM * axes.dataLim.ymax)
    axes.grid(axis="y", color=_FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_SOFT_INK)
    axes.tick_params(colors=_SOFT_INK, labelsize=_TEXT_SIZE)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="both", nbins=6)
    axes.yaxis.set_major_formatter(lambda value, position: _with_prefix(value))
    if axes.get_legend_handles_labels()[0]:  # above the plot, where no curve can be
        axes.legend(
            loc="lower right",
            bbox_to_anchor=(1.01, 1.0),
            fontsize=_SMALL_SIZE,
            labelcolor=_SOFT_INK,
            frameon=False,
            handletextpad=0.4,
            borderpad=0.3,
        )


def _finish_step_axis(axes: Axes, preview: Preview) -> None:
    epochs = [record.epoch for record in preview.records]
    _finish_axis(
        axes, "optimizer step", len(epochs), [bisect_left(epochs, epoch) for epoch in range(preview.num_epochs)]
    )


def _finish_sample_axis(axes: Axes, preview: Preview) -> None:
    last = preview.windows[-1].record
    per_epoch = preview.batches_per_epoch * preview.samples_per_micro_batch
    end = last.num_samples_before + last.effective_batch_size
    _finish_axis(axes, "samples seen, over all ranks", end, [epoch * per_epoch for epoch in range(preview.num_epochs)])


def _finish_axis(axes: Axes, label: str, end: int, epoch_starts: list[int]) -> None:
    axes.set_xlabel(label, color=_SOFT_INK, fontsize=_TEXT_SIZE)
    axes.set_xlim(0, end)
    axes.xaxis.set_major_formatter(lambda value, position: _with_prefix(value))
    starts = [start for start in epoch_starts if start < end]
    if not 1 < len(starts) <= _MOST_EPOCH_LINES:
        return
    for epoch, start in enumerate(starts):
        axes.axvline(start, color=_FAINT, linewidth=0.8, zorder=0)
        if len(starts) <= _MOST_EPOCH_NAMES:
            name = f"epoch {epoch}" if epoch == 0 else str(epoch)
            axes.annotate(
                name,
                (start, 1),
                xytext=(3, -2),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                verticalalignment="top",
                color=_SOFT_INK,
                fontsize=_SMALL_SIZE,
            )


def _write_heading(figure: Figure, preview: Preview) -> None:
    ranks = "1 rank" if preview.world_size == 1 else f"{preview.world_size} ranks"
    epochs = "1 epoch" if preview.num_epochs == 1 else f"{preview.num_epochs:,} epochs"
    setting = [
        f"in {preview.unit.replace('_', '-')}",
        f"{epochs} of {preview.batches_per_epoch:,} batches",
        f"batch size {preview.batch_size:,}",
        ranks,
        f"epoch end: {preview.epoch_end}",
    ]
    figure.suptitle(
        f"Schedule: {preview.schedule}\n",
        x=0.012,
        ha="left",
        linespacing=1.6,
        fontsize=13,
        fontweight="bold",
        color=_INK,
    )
    below = 1 - _SUBTITLE_INCHES / figure.get_figheight()  # in the room of the title's empty second line
    figure.text(0.012, below, "   ·   ".join(setting), fontsize=_TEXT_SIZE, color=_SOFT_INK)


def _count_up(preview: Preview) -> tuple[list[int], list[int]]:
    """Return the samples seen when each step was made, and the number of steps then; both from 0."""
    records = preview.records
    seen = [0, *(record.num_samples_before + record.effective_batch_size for record in records)]
    return seen, list(range(len(seen)))


def _with_prefix(value: float) -> str:
    """Return 2500 as "2.5k", and 3e6 as "3M"."""
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{prefix}"
    return f"{value:g}"


def _short(value: float) -> str:
    """Return 0.0003 as "3e-4"."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}" if value else "0"
