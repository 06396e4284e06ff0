"""Image, truth and prediction side by side. Matplotlib is imported when a picture is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _SOFT_INK, _FRAME = "#1F2328", "#656D76", "#D5D9DE"
_IGNORED_COLOR: Final = "#8b8f96"
_COLUMNS: Final = ("Image", "Truth", "Prediction", "Right or wrong")
_RIGHT, _WRONG = "#dbe7f1", "#c8452f"
_ROW_INCHES: Final = 2.9


@dataclass(frozen=True)
class Example:
    """One image with what was to be found and what was found.

    Args:
        image: 8-bit RGB of shape ``(height, width, 3)``.
        truth: classes of shape ``(height, width)``.
        prediction: classes of shape ``(height, width)``.
        caption: where the image is from.
    """

    image: npt.NDArray[np.uint8]
    truth: npt.NDArray[np.int64]
    prediction: npt.NDArray[np.int64]
    caption: str = ""

    def measure_accuracy(self, ignore_index: int) -> float:
        """Return the part of the pixels that count whose class is right; not a number where none counts.

        Example:
            >>> truth = np.array([[0, 1, 255, 1]])
            >>> Example(np.zeros((1, 4, 3), np.uint8), truth, np.array([[0, 1, 0, 0]])).measure_accuracy(255)
            0.6666666666666666
        """
        counts = self.truth != ignore_index
        return float((self.truth == self.prediction)[counts].mean()) if counts.any() else float("nan")


def make_prediction_figure(
    examples: Sequence[Example],
    class_names: Sequence[str],
    class_colors: Sequence[str],
    ignore_index: int = 255,
    title: str = "",
    subtitle: str = "",
) -> Figure:
    """Return a picture with a row for each example: image, truth, prediction, and where they differ.

    Args:
        examples: from top to bottom.
        class_names: the classes' names, by index.
        class_colors: the classes' colours as ``#rrggbb``, by index.
        ignore_index: the class of pixels that do not count; they are grey in the truth.
        title: what the picture shows.
        subtitle: what else there is to say.

    Raises:
        ImportError: Matplotlib is not installed.

    Example:
        >>> example = Example(np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8), int), np.zeros((8, 8), int))
        >>> figure = make_prediction_figure([example], ["Water"], ["#1f4e79"])
        >>> [axes.get_title() for axes in figure.axes]
        ['Image', 'Truth', 'Prediction', 'Right or wrong']
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("A picture needs Matplotlib: pip install 'lightning-accum[report]'.") from error
    top, bottom = (0.85 if title else 0.35), 0.75
    height = top + _ROW_INCHES * len(examples) + bottom
    width = _ROW_INCHES * len(_COLUMNS) + 0.5
    figure = Figure(figsize=(width, height), dpi=130, facecolor="white")
    grid = figure.add_gridspec(
        len(examples), len(_COLUMNS), left=0.4 / width, right=1 - 0.1 / width, top=1 - top / height,
        bottom=bottom / height, wspace=0.03, hspace=0.03,
    )  # fmt: skip
    for row, example in enumerate(examples):
        axes = [figure.add_subplot(grid[row, column]) for column in range(len(_COLUMNS))]
        _draw_row(axes, example, class_colors, ignore_index)
        if row == 0:
            for panel, name in zip(axes, _COLUMNS, strict=True):
                panel.set_title(name, fontsize=10, color=_INK, pad=6)
    _draw_legend(figure, class_names, class_colors, has_ignored=any((e.truth == ignore_index).any() for e in examples))
    figure.text(0.4 / width, 1 - 0.3 / height, title, fontsize=13, fontweight="bold", color=_INK, va="center")
    figure.text(1 - 0.1 / width, 1 - 0.3 / height, subtitle, fontsize=9.5, color=_SOFT_INK, va="center", ha="right")
    return figure


def _draw_row(axes: Sequence[Axes], example: Example, class_colors: Sequence[str], ignore_index: int) -> None:
    palette = _make_palette({**dict(enumerate(class_colors)), ignore_index: _IGNORED_COLOR})
    is_wrong = (example.truth != example.prediction).astype(np.int64)
    is_wrong[example.truth == ignore_index] = 2
    verdict = _make_palette({0: _RIGHT, 1: _WRONG, 2: _IGNORED_COLOR})[is_wrong]
    for panel, picture in zip(
        axes, (example.image, palette[example.truth], palette[example.prediction], verdict), strict=True
    ):
        panel.imshow(picture, interpolation="nearest")
        panel.set(xticks=[], yticks=[])
        for spine in panel.spines.values():
            spine.set(color=_FRAME, linewidth=0.8)
    axes[0].set_ylabel(example.caption, fontsize=9, color=_SOFT_INK, labelpad=6)
    label = f"{example.measure_accuracy(ignore_index):.0%} right"
    box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    axes[-1].text(0.97, 0.035, label, transform=axes[-1].transAxes, ha="right", fontsize=8.5, color=_INK, bbox=box)


def _make_palette(colors: dict[int, str]) -> npt.NDArray[np.uint8]:
    palette = np.zeros((256, 3), dtype=np.uint8)
    for index, color in colors.items():
        palette[index] = [int(color[place : place + 2], 16) for place in (1, 3, 5)]
    return palette


def _draw_legend(figure: Figure, names: Sequence[str], colors: Sequence[str], has_ignored: bool) -> None:
    from matplotlib.patches import Patch

    entries: list[tuple[str, str]] = list(zip(names, colors, strict=True))
    if has_ignored:
        entries.append(("Not counted", _IGNORED_COLOR))
    handles: list[Any] = [Patch(facecolor=color, edgecolor=_FRAME, label=name) for name, color in entries]
    figure.legend(
        handles=handles, loc="lower center", ncols=min(len(handles), 5), frameon=False, fontsize=9, labelcolor=_INK,
        handlelength=1.3, handleheight=1.1, columnspacing=1.8, borderaxespad=0.4,
    )  # fmt: skip
