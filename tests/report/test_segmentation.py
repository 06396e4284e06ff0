"""The picture shows what was right, what was wrong, and what did not count."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from lightning_accum.report.segmentation import Example, make_prediction_figure


def make_example(caption="here"):
    truth = np.array([[0, 0], [1, 255]])
    return Example(np.full((2, 2, 3), 100, np.uint8), truth, np.array([[0, 1], [1, 1]]), caption)


def panel(figure, row, column):
    return np.asarray(figure.axes[row * 4 + column].images[0].get_array())


def test_panels_show_image_truth_prediction_and_where_they_differ():
    figure = make_prediction_figure([make_example()], ["A", "B"], ["#000001", "#000002"])
    assert (panel(figure, 0, 0) == 100).all()
    assert panel(figure, 0, 1)[..., 2].tolist()[0] == [1, 1] and panel(figure, 0, 1)[1, 0, 2] == 2
    assert panel(figure, 0, 2)[..., 2].tolist() == [[1, 2], [2, 2]]
    verdict = panel(figure, 0, 3)
    colors = {tuple(verdict[place]) for place in ((0, 0), (0, 1), (1, 1))}
    assert len(colors) == 3  # right, wrong, not counted
    assert tuple(verdict[0, 0]) == tuple(verdict[1, 0])


def test_figure_has_a_row_a_caption_and_a_share_for_each_example():
    figure = make_prediction_figure([make_example("north"), make_example("south")], ["A", "B"], ["#000001", "#000002"])
    assert len(figure.axes) == 8
    assert [figure.axes[row * 4].get_ylabel() for row in (0, 1)] == ["north", "south"]
    assert figure.axes[3].texts[0].get_text() == "67% right"
    FigureCanvasAgg(figure).draw()


@pytest.mark.parametrize(("ignored", "entries"), [(True, ["A", "B", "Not counted"]), (False, ["A", "B"])])
def test_legend_names_the_classes_and_what_does_not_count_if_anything(ignored, entries):
    example = make_example()
    if not ignored:
        example.truth[1, 1] = 1
    figure = make_prediction_figure([example], ["A", "B"], ["#000001", "#000002"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == entries


def test_image_of_which_nothing_counts_has_no_share():
    example = Example(np.zeros((1, 1, 3), np.uint8), np.array([[255]]), np.array([[0]]))
    assert np.isnan(example.measure_accuracy(255))


def test_missing_matplotlib_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'lightning-accum\[report\]'"):
        make_prediction_figure([make_example()], ["A"], ["#000000"])
