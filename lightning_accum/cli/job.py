"""One training, from its configuration to its results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from lightning_accum import GradientAccumulation
from lightning_accum._lightning import callbacks_of
from lightning_accum.cli.pictures import draw_predictions
from lightning_accum.cli.show import Narrator, make_result_table
from lightning_accum.errors import expected
from lightning_accum.norms import NormSwap


@dataclass(frozen=True)
class Results:
    """What a training ended with.

    Attributes:
        metrics: of validation and, if it was run, test, with the best checkpoint.
        num_optimizer_steps: steps that were made.
        effective_batch_sizes: the different ones of its windows, in samples over all ranks; empty if not known.
        objective: the metric that a sweep optimises; None if it was not measured.
    """

    metrics: dict[str, float]
    num_optimizer_steps: int
    effective_batch_sizes: list[int]
    objective: float | None


def run_training(config: DictConfig) -> Results:
    """Train, evaluate, print, and write ``results.json`` and ``prediction.png`` into ``config.output_dir``.

    Raises:
        ConfigError: for settings that cannot be used.
    """
    pl.seed_everything(config.seed, workers=True, verbose=False)
    datamodule: Any = instantiate(config.data, _convert_="all")
    task = instantiate(config.task, class_names=datamodule.class_names, _convert_="all")
    trainer = make_trainer(config)
    trainer.fit(task, datamodule)
    num_optimizer_steps = trainer.global_step
    (narrator,) = (callback for callback in callbacks_of(trainer) if isinstance(callback, Narrator))
    metrics = evaluate(trainer, task, datamodule, with_test=config.run_test)
    results = Results(
        metrics=metrics,
        num_optimizer_steps=num_optimizer_steps,
        effective_batch_sizes=sorted(narrator.batch_sizes),
        objective=metrics.get(config.objective),
    )
    if trainer.is_global_zero:
        report(results, config, task, datamodule)
    return results


def make_trainer(config: DictConfig) -> pl.Trainer:
    """Return the trainer with its callbacks and loggers."""
    accumulation: GradientAccumulation = instantiate(config.accumulation, _convert_="all")
    swap: NormSwap = instantiate(config.norm)
    others = [instantiate(callback, _convert_="all") for callback in (config.callbacks or {}).values()]
    loggers: list[Logger] = [instantiate(logger, _convert_="all") for logger in (config.logger or {}).values()]
    if not loggers:  # one that has nowhere to write to
        others = [callback for callback in others if not isinstance(callback, pl.callbacks.LearningRateMonitor)]
    has_checkpoint = any(isinstance(callback, pl.callbacks.ModelCheckpoint) for callback in others)
    has_bar = any(isinstance(callback, pl.callbacks.ProgressBar) for callback in others)
    trainer: pl.Trainer = instantiate(
        config.trainer,
        callbacks=[accumulation, swap, Narrator(accumulation, swap, config.output_dir), *others],
        logger=loggers or False,
        default_root_dir=config.output_dir,
        enable_checkpointing=has_checkpoint,
        enable_progress_bar=has_bar,
        _convert_="all",
    )
    for logger in trainer.loggers:
        logger.log_hyperparams(cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True)))
    return trainer


def evaluate(trainer: pl.Trainer, task: pl.LightningModule, datamodule: Any, with_test: bool) -> dict[str, float]:
    """Return the metrics of validation and test with the best checkpoint, which the task then holds."""
    checkpoint = trainer.checkpoint_callback
    best = getattr(checkpoint, "best_model_path", "") or None
    metrics = dict(trainer.validate(task, datamodule, ckpt_path=best, verbose=False)[0])
    if with_test:
        metrics |= trainer.test(task, datamodule, ckpt_path=best, verbose=False)[0]
    return metrics


def report(results: Results, config: DictConfig, task: pl.LightningModule, datamodule: Any) -> None:
    """Write the results to files, and print them."""
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results.__dict__, indent=2)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    console = Console(markup=False)
    console.print(make_result_table(results.metrics, results.num_optimizer_steps, results.effective_batch_sizes))
    if config.num_pictures:
        draw_predictions(task, datamodule, config.num_pictures, folder / "prediction.png")
    if results.objective is None:
        known = ", ".join(sorted(results.metrics))
        raise expected(f"an objective out of {known}", config.objective, "objective=")
    console.print(f"Written to {folder}", soft_wrap=True)
