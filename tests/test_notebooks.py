"""Every notebook is stored without outputs, runs from top to bottom, and shows its pictures."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
SECONDS_A_CELL = 120
SMALLEST_PICTURE = 5_000  # bytes; an empty pair of axes is smaller


def find_pictures(notebook) -> list[bytes]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    return [base64.b64decode(picture) for picture in pictures]


def test_notebooks_exist():
    assert "why_accumulate" in {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_executed_shows_a_picture_for_each_plot(path, tmp_path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)  # pictures come from the kernel's own backend
    notebook = nbformat.read(path, as_version=4)
    num_plots = sum(cell.source.count("plt.show()") for cell in notebook.cells if cell.cell_type == "code")
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS_A_CELL, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    pictures = find_pictures(notebook)
    assert len(pictures) >= num_plots > 0
    assert all(len(picture) > SMALLEST_PICTURE for picture in pictures)
