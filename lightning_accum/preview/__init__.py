"""A schedule as a table and a picture, before any training. Pure: no torch, no Lightning."""

from lightning_accum.preview.figure import make_figure
from lightning_accum.preview.learning_rate import make_learning_rates
from lightning_accum.preview.table import make_notes, make_table
from lightning_accum.preview.windows import Preview, PreviewStage, PreviewWindow, make_preview, make_stages

__all__ = [
    "Preview",
    "PreviewStage",
    "PreviewWindow",
    "make_figure",
    "make_learning_rates",
    "make_notes",
    "make_preview",
    "make_stages",
    "make_table",
]
