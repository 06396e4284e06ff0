"""Trainings from the command line: they run, learn, report, sweep, and travel."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest
from PIL import Image

from lightning_accum.cli import conf_dir
from lightning_accum.cli.train import main as train

TINY = ["trainer=cpu", "trainer.max_epochs=1", "trainer.limit_val_batches=2", "run_test=false", "model.width=4"]
SYNTHETIC = [*TINY, "data=synthetic_segmentation"]
EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))


def read_results(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def read_column(folder, name):
    with (folder / "csv" / "metrics.csv").open(encoding="utf-8") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_runs_in_a_tiny_form_and_leaves_what_it_promises(experiment, tmp_path, capsys):
    sizes = ["data.crop_size=64", "data.tile_size=270", "data.num_crops=24"]
    assert train([f"experiment={experiment}", *TINY, *sizes, f"hydra.run.dir={tmp_path}"]) == 0
    results = read_results(tmp_path)
    assert results["num_optimizer_steps"] == 3  # of 8 samples each
    assert results["effective_batch_sizes"] == [8]
    assert 0 <= results["objective"] == results["metrics"]["val/mIoU"] <= 1
    for name in ("prediction.png", "schedule.png"):
        assert min(Image.open(tmp_path / name).size) > 500
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert list((tmp_path / "tensorboard").glob("events*"))
    assert len(read_column(tmp_path, "accumulation/loss")) == 3
    told = capsys.readouterr().out
    for text in (
        "3 optimizer steps of 4 micro-batches",
        "effective batch size 8",
        "Results",
        "mIoU",
        "accuracy",
        "Grassland",
    ):
        assert text in told


def test_smaller_form_of_the_smoke_experiment_has_a_falling_loss(tmp_path):
    smaller = ["data.crop_size=64", "data.num_crops=200", "trainer.limit_val_batches=1", "num_pictures=0"]
    code = train(["experiment=earth_smoke", "trainer=cpu", "run_test=false", *smaller, f"hydra.run.dir={tmp_path}"])
    losses = read_column(tmp_path, "accumulation/loss")
    assert code == 0
    assert len(losses) >= 20
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_exact_number_of_steps_ends_the_learning_rate_at_its_end(tmp_path):
    assert train([*SYNTHETIC, "accumulation=epochs", "trainer.max_epochs=3", f"hydra.run.dir={tmp_path}"]) == 0
    rates = read_column(tmp_path, "lr-AdamW")
    assert read_results(tmp_path)["num_optimizer_steps"] == 8 + 8 + 4
    assert max(rates) > 100 * rates[0] / 25 and rates[-1] < 1e-3 * max(rates)


def test_last_checkpoint_and_best_are_both_kept_and_the_best_is_reported(tmp_path):
    assert train([*SYNTHETIC, "trainer.max_epochs=3", f"hydra.run.dir={tmp_path}"]) == 0
    best = max(read_column(tmp_path, "val/mIoU"))
    assert read_results(tmp_path)["objective"] == pytest.approx(best, abs=1e-5)


def test_plain_settings_leave_out_what_they_say(tmp_path):
    off = ["logger=none", "callbacks=none", "scheduler=none", "num_pictures=0", "norm=keep"]
    assert train([*SYNTHETIC, *off, f"hydra.run.dir={tmp_path}"]) == 0
    assert {path.name for path in tmp_path.iterdir()} <= {".hydra", "train.log", "results.json", "schedule.png"}


def test_results_go_to_a_folder_of_the_data_where_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train([*SYNTHETIC, "num_pictures=0"]) == 0
    (folder,) = (tmp_path / "outputs" / "synthetic_segmentation").iterdir()
    assert read_results(folder)["num_optimizer_steps"] == 8


def test_sweep_of_schedules_makes_a_job_of_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(["-m", *SYNTHETIC, "accumulation=constant,linear", "num_pictures=0"]) == 0
    (folder,) = (tmp_path / "outputs" / "synthetic_segmentation").iterdir()
    steps = [read_results(folder / str(job))["num_optimizer_steps"] for job in (0, 1)]
    assert steps == [2, 7]  # 32 micro-batches: two windows of 16; 4, 4, 5, 5, 6, 7, and the last one


def test_sweep_of_schedules_as_values_makes_a_job_of_each(tmp_path):
    values = 'accumulation.schedule="0:2,1:8",16'
    sweep = ["-m", *SYNTHETIC, "accumulation=constant", values, "num_pictures=0", f"hydra.sweep.dir={tmp_path}"]
    assert train(sweep) == 0
    assert [read_results(tmp_path / str(job))["num_optimizer_steps"] for job in (0, 1)] == [16, 2]


def test_sweep_with_a_wrong_value_runs_the_other_jobs_and_says_what_was_wrong(tmp_path, capfd):
    sweep = ["-m", *SYNTHETIC, "norm.policy=grupp,group", "num_pictures=0", f"hydra.sweep.dir={tmp_path}"]
    assert train(sweep) == 2
    assert (tmp_path / "1" / "results.json").exists()
    told = capfd.readouterr().err
    assert "one of group, keep, but got 'grupp'" in told and "Traceback" not in told


def test_class_weights_train_with_the_weight_that_the_task_returns(tmp_path):
    weighted = ["task.class_weights=[1,2,2,2]", "weight=returned", "num_pictures=0"]
    assert train([*SYNTHETIC, *weighted, f"hydra.run.dir={tmp_path}"]) == 0


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_precision_trains_and_draws(precision, tmp_path):
    assert train([*SYNTHETIC, f"precision={precision}", f"hydra.run.dir={tmp_path}"]) == 0
    assert (tmp_path / "prediction.png").exists()


@pytest.mark.distributed
@pytest.mark.parametrize("program", [["lightning_accum.cli.train"], ["lightning_accum.cli.main", "train"]])
def test_two_processes_train_as_one_from_either_way_of_starting(program, tmp_path):
    module, *command = program
    arguments = [*SYNTHETIC[1:], "trainer=ddp_cpu", "accumulation=samples", f"hydra.run.dir={tmp_path / 'out'}"]
    starter = ["-m", module] if not command else ["-c", f"import sys; from {module} import main; sys.exit(main())"]
    done = subprocess.run(
        [sys.executable, *starter, *command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    results = read_results(tmp_path / "out")
    assert results["effective_batch_sizes"] == [8]  # of both ranks
    assert results["num_optimizer_steps"] == 8  # 64 images
    assert done.stdout.count("Results") == 1
