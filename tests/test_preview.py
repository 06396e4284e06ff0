import re
import sys

import pytest
import torch

from lightning_accum.cli.preview import main
from lightning_accum.errors import ConfigError
from lightning_accum.preview import (
    make_figure,
    make_learning_rates,
    make_notes,
    make_preview,
    make_stages,
    make_table,
)
from lightning_accum.schedules import FromCallable

FLOAT64 = 1e-14  # a few roundings of numbers of size 1


def read_table(table):
    return {column.header: list(column.cells) for column in table.columns}


# Windows and stages


def test_preview_counts_the_steps_of_a_schedule_per_epoch():
    preview = make_preview({0: 1, 2: 4}, batches_per_epoch=10, num_epochs=4, batch_size=2, world_size=3)
    assert (preview.num_optimizer_steps, preview.num_samples) == (26, 240)


def test_preview_samples_at_a_step_are_a_sum_over_the_ramp():
    preview = make_preview("0 steps: 1, 2 steps: 2, 4 steps: 8", batches_per_epoch=30, num_epochs=1, batch_size=10)
    assert [preview.count_samples(num_steps) for num_steps in (0, 2, 4, 5)] == [0, 20, 60, 140]
    assert [preview.count_optimizer_steps(samples) for samples in (0, 9, 20, 60, 139, 140)] == [0, 0, 2, 4, 4, 5]


def test_preview_tells_planned_from_held_at_the_end_of_an_epoch():
    preview = make_preview(4, batches_per_epoch=10, num_epochs=2)
    assert [window.planned_factor for window in preview.windows] == [4] * 6
    assert [window.is_short for window in preview.windows] == [False, False, True] * 2


def test_preview_in_samples_plans_the_micro_batches_that_reach_the_target():
    preview = make_preview(30, unit="samples", batches_per_epoch=10, num_epochs=1, batch_size=2, world_size=2)
    assert [(window.record.target, window.planned_factor) for window in preview.windows] == [(30, 8), (30, 8)]


def test_preview_stops_after_max_steps():
    assert make_preview(2, batches_per_epoch=10, num_epochs=9, max_steps=3).num_optimizer_steps == 3


def test_preview_of_an_unpredictable_schedule_is_an_error():
    adaptive = FromCallable(lambda progress: 2, is_predictable=False)
    with pytest.raises(ConfigError, match="depends on the progress of training alone"):
        make_preview(adaptive, batches_per_epoch=10, num_epochs=1)


def test_preview_without_any_step_is_an_error_that_says_why():
    with pytest.raises(ConfigError, match="at least one optimizer step.*An epoch of 5 batches ends before"):
        make_preview(8, batches_per_epoch=5, num_epochs=3, epoch_end="drop")


def test_stages_are_runs_of_equal_factor_with_short_windows_in_them():
    first, second = make_stages(make_preview("0:4, 1:3", batches_per_epoch=10, num_epochs=3, batch_size=2))
    assert (first.first_factor, first.num_optimizer_steps, first.num_short, first.num_samples) == (4, 3, 1, 20)
    assert (second.first_optimizer_step, second.first_epoch, second.num_optimizer_steps) == (3, 1, 8)


def test_stages_count_dropped_windows_and_not_their_samples():
    (stage,) = make_stages(make_preview(4, batches_per_epoch=10, num_epochs=2, epoch_end="drop"))
    assert (stage.num_optimizer_steps, stage.num_dropped, stage.num_short, stage.num_samples) == (4, 2, 0, 16)


def test_stages_after_a_dropped_window_begin_at_the_steps_really_made():
    stages = make_stages(make_preview("0:4, 1:3", batches_per_epoch=10, num_epochs=2, epoch_end="drop"))
    assert [stage.first_optimizer_step for stage in stages] == [0, 2]


@pytest.mark.parametrize("max_stages", [3, 4, 10, 31, 32, 99])
def test_stages_merged_to_fewer_keep_both_ends_and_all_counts(max_stages):
    preview = make_preview("linear(1, 32, over=310 steps)", batches_per_epoch=10_000, num_epochs=1)
    every, merged = make_stages(preview), make_stages(preview, max_stages)
    assert len(every) == 32
    assert len(merged) <= max_stages
    assert (merged[0], merged[-1]) == (every[0], every[-1])
    assert sum(stage.num_optimizer_steps for stage in merged) == preview.num_optimizer_steps
    assert sum(stage.num_samples for stage in merged) == preview.num_samples
    for earlier, later in zip(merged, merged[1:], strict=False):
        assert earlier.last_factor + 1 == later.first_factor
        assert earlier.first_optimizer_step + earlier.num_optimizer_steps == later.first_optimizer_step


# Learning rates


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 7, 10, 26, 100])
def test_one_cycle_is_that_of_torch(num_steps):
    assert make_learning_rates("onecycle", 0.3, num_steps) == pytest.approx(
        trace(torch.optim.lr_scheduler.OneCycleLR, num_steps, max_lr=0.3, total_steps=num_steps), rel=FLOAT64, abs=1e-16
    )


@pytest.mark.parametrize("num_steps", [1, 2, 10, 100])
def test_cosine_is_that_of_torch(num_steps):
    assert make_learning_rates("cosine", 0.3, num_steps) == pytest.approx(
        trace(torch.optim.lr_scheduler.CosineAnnealingLR, num_steps, T_max=num_steps), rel=FLOAT64 * num_steps
    )


def trace(scheduler_class, num_steps, **arguments):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=0.3)
    scheduler = scheduler_class(optimizer, **arguments)
    rates = []
    for step in range(num_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step < num_steps - 1:
            scheduler.step()
    return rates


@pytest.mark.parametrize(("shape", "peak"), [("linear", 1.0), ("cosine", 0.0), ("cosine", float("nan"))])
def test_learning_rate_that_cannot_be_is_an_error(shape, peak):
    with pytest.raises(ConfigError):
        make_learning_rates(shape, peak, 10)


# Table and notes


def test_table_has_a_row_a_stage_and_totals():
    preview = make_preview("0:4, 1:3", batches_per_epoch=10, num_epochs=3, batch_size=2, world_size=2)
    table = make_table(preview, learning_rates=[0.5 / (1 + step) for step in range(11)])
    assert read_table(table) == {
        "from step": ["0", "3"],
        "epoch": ["0", "1"],
        "steps": ["3", "8"],
        "factor": ["4", "3"],
        "effective\nbatch size": ["16", "12"],
        "short": ["1", "2"],
        "samples": ["40", "80"],
        "learning\nrate": ["5.00e-01", "1.25e-01"],
    }
    assert [column.footer for column in table.columns] == ["total", "", "11", "", "", "3", "120", ""]


def test_table_shows_dropped_windows_only_where_there_are_some():
    dropping = make_preview(4, batches_per_epoch=10, num_epochs=2, epoch_end="drop")
    assert read_table(make_table(dropping))["dropped"] == ["2"]
    assert not {"short", "dropped"} & read_table(make_table(make_preview(5, batches_per_epoch=10, num_epochs=2))).keys()


def test_table_of_a_long_ramp_is_merged_into_few_rows():
    preview = make_preview("linear(32, 256, over=2000 steps)", batches_per_epoch=10**6, num_epochs=1)
    factors = read_table(make_table(preview, max_rows=10))["factor"]
    assert len(factors) == 10
    assert (factors[0], factors[1], factors[-1]) == ("32", "33 → 60", "256")


def test_notes_are_silent_where_all_is_as_asked():
    assert make_notes(make_preview(5, batches_per_epoch=10, num_epochs=2)) == []


def test_notes_call_a_dropped_window_dropped_and_not_short():
    (note,) = make_notes(make_preview(4, batches_per_epoch=10, num_epochs=2, epoch_end="drop"))
    assert "thrown away" in note


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        ({"schedule": 30, "unit": "samples", "batch_size": 4}, "30 samples asked for, 32 held"),
        (
            {"schedule": "0 steps: 6, 1 steps: 8, 2 steps: 10", "unit": "samples", "batch_size": 4},
            r"6 samples asked for, 8 held \(and so on up to 10 asked for, 12 held\)",
        ),
        ({"schedule": 4}, "2 of 6 windows are short"),
        ({"schedule": 4, "num_epochs": 1}, "1 of 3 windows is short"),
        ({"schedule": 4, "epoch_end": "drop"}, "4 micro-batches a rank are thrown away in 2 windows"),
        ({"schedule": "linear(1, 32, over=99 steps)"}, "goes up to 32, but training ends before it passes"),
    ],
)
def test_notes_tell_what_is_not_as_asked(arguments, note):
    preview = make_preview(**{"batches_per_epoch": 10, "num_epochs": 2} | arguments)
    assert any(re.search(note, line) for line in make_notes(preview))


# Picture


def find_axes(figure, title):
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == title)


def test_figure_draws_planned_factors_and_marks_short_windows():
    figure = make_figure(make_preview("0:4, 1:3", batches_per_epoch=10, num_epochs=2, batch_size=2))
    axes = find_axes(figure, "Accumulation factor")
    assert list(axes.patches[0].get_data().values) == [4, 4, 4, 3, 3, 3, 3]
    (marks,) = [line for line in axes.lines if line.get_label() == "cut short"]
    assert (list(marks.get_xdata()), list(marks.get_ydata())) == ([2.5, 6.5], [2, 1])


def test_figure_draws_batch_size_over_samples_and_marks_dropped_windows():
    figure = make_figure(make_preview(4, batches_per_epoch=10, num_epochs=2, batch_size=2, epoch_end="drop"))
    axes = find_axes(figure, "Effective batch size")
    assert list(axes.patches[0].get_data().values) == [8] * 6
    assert list(axes.patches[0].get_data().edges) == [0, 8, 16, 20, 28, 36, 40]
    (marks,) = [line for line in axes.lines if line.get_label() == "dropped"]
    assert (list(marks.get_xdata()), list(marks.get_ydata())) == ([16, 36], [4, 4])


def test_figure_counts_steps_over_samples_beside_a_constant_factor():
    preview = make_preview("0 steps: 1, 2 steps: 4", batches_per_epoch=10, num_epochs=1)
    axes = find_axes(make_figure(preview), "Optimizer steps")
    (constant,) = [line for line in axes.lines if line.get_label() == "3 with factor 4 throughout"]
    (steps,) = [line for line in axes.lines if line.get_color() == "#009E73"]
    assert list(constant.get_xdata()) == [0, 4, 8, 10]
    assert (list(steps.get_xdata()), list(steps.get_ydata())) == ([0, 1, 2, 6, 10], [0, 1, 2, 3, 4])


def test_figure_draws_the_learning_rate_only_if_it_is_given():
    preview = make_preview(2, batches_per_epoch=6, num_epochs=1)
    assert len(make_figure(preview).axes) == 3
    axes = find_axes(make_figure(preview, [3e-4, 2e-4, 1e-4]), "Learning rate")
    assert list(axes.lines[0].get_ydata()) == [3e-4, 2e-4, 1e-4]


def test_figure_without_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"lightning-accum\[report\]"):
        make_figure(make_preview(2, batches_per_epoch=6, num_epochs=1))


# Command


COMMAND = ["--batches-per-epoch", "500", "--epochs", "3", "--batch-size", "2"]


def test_command_prints_a_table_and_writes_a_picture(tmp_path, capsys):
    path = tmp_path / "new" / "preview.png"
    ramp = ["--schedule", "linear(8, 32, over=40 steps)", "--lr", "3e-4", "--lr-schedule", "onecycle"]
    assert main([*COMMAND, *ramp, "--output", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "linear(8, 32, over=40 steps)" in printed
    assert "1.20e-05" in printed  # the first learning rate of OneCycle, 3e-4 / 25


def test_command_without_matplotlib_prints_the_table_all_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*COMMAND, "--schedule", "8", "--output", str(tmp_path / "preview.png")]) == 1
    captured = capsys.readouterr()
    assert "factor" in captured.out
    assert "lightning-accum[report]" in captured.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--schedule", "4:8"], "first epoch, 0"),
        (["--schedule", "8", "--lr-schedule", "cosine"], "--lr beside --lr-schedule"),
        (["--schedule", "8", "--lr", "-1"], "a learning rate above 0"),
        (["--schedule", "8", "--batch-size", "0"], "batch_size"),
        (["--schedule", "8", "--world-size", "0"], "world_size"),
    ],
)
def test_command_with_a_wrong_setting_says_so_and_writes_nothing(tmp_path, capsys, arguments, problem):
    path = tmp_path / "preview.png"
    assert main([*COMMAND, *arguments, "--output", str(path)]) == 2
    assert problem in capsys.readouterr().err
    assert not path.exists()
