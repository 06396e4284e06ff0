"""Harness H: one scalar parameter whose gradient is the mean of a batch, and a record of everything that happens to it.

``w = 1``, ``loss = w * mean(batch)``, so ``d loss / d w = mean(batch)``: with the batches 1, 2, 3, ... the right
gradient of a window is the mean of its numbers, and can be written down by hand. :func:`train` runs any LightningModule
quietly and returns a :class:`Record`; :class:`Spy` fills one from the hooks that a user's own callback would use.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_accum import GradientAccumulation

FLOAT32 = 1e-6
"""Relative error of a hand-calculated value in float32: some ten roundings of 6e-8."""

FLOAT64 = 1e-12
"""Relative error in float64: sums of some hundred terms in another order, rounded to 1.1e-16, over tens of steps."""


@dataclass
class Record:
    """What one training did, in the order in which it happened.

    ``gradients`` and ``module_gradients`` hold the scalar (or the flat vector) that the callback's and the module's own
    ``on_before_optimizer_step`` saw; ``clipped`` holds the norm after clipping; ``parameters`` the flat parameters
    after every real update of the optimizer, and ``lrs`` the learning rate each update was made with.
    """

    gradients: list[Any] = field(default_factory=list)
    module_gradients: list[Any] = field(default_factory=list)
    clipped: list[float] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    lrs: list[float] = field(default_factory=list)
    batch_of_step: list[int] = field(default_factory=list)
    epoch_of_step: list[int] = field(default_factory=list)
    factors: list[int] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)
    logged: list[tuple[int | None, dict[str, float]]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    num_after_backward: int = 0
    num_scheduler_steps: int = 0
    global_step: int = 0
    trainer: L.Trainer | None = None
    module: L.LightningModule | None = None

    @property
    def num_updates(self) -> int:
        """Real updates of the optimizer, as it counted them itself."""
        return len(self.parameters)

    def points(self, name: str) -> list[tuple[int | None, float]]:
        """The logged points of one metric: pairs of the logger's step and the value."""
        return [(step, metrics[name]) for step, metrics in self.logged if name in metrics]

    def warned(self, *parts: str) -> list[str]:
        """The warnings that contain all of ``parts``, whatever their case."""
        return [text for text in self.warnings if all(part.lower() in text.lower() for part in parts)]


def flat_gradient(module: torch.nn.Module) -> Any:
    """The gradient of all parameters as one vector; a float where there is a single scalar parameter."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
    flat = torch.cat([part.detach().reshape(-1) for part in parts]).clone()
    return flat.item() if flat.numel() == 1 else flat


def flat_parameters(module: torch.nn.Module) -> Tensor:
    """A copy of all parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).clone()


class Spied(L.LightningModule):
    """A LightningModule that writes what its own hooks see into ``self.record``, if it has one."""

    record: Record | None = None

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.record is not None:
            self.record.module_gradients.append(flat_gradient(self))

    def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any, gradient_clip_algorithm: Any) -> None:
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        if self.record is not None and gradient_clip_val is not None:
            self.record.clipped.append(torch.as_tensor(flat_gradient(self)).norm().item())


class Scalar(Spied):
    """Harness H's module.

    Args:
        lr: learning rate of the SGD; 0 keeps ``w`` at 1.
        step: replaces ``training_step``, called with the module, the batch and its index.
        configure: replaces ``configure_optimizers``, called with the module.
        scheduler: a learning-rate scheduler that keeps the rate and counts its steps.
    """

    def __init__(
        self,
        lr: float = 0.0,
        step: Callable[[Any, Any, int], Any] | None = None,
        configure: Callable[[Any], Any] | None = None,
        scheduler: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones((), dtype=dtype))
        self.lr, self.step, self.configure, self.with_scheduler = lr, step, configure, scheduler

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.step is not None:
            return self.step(self, batch, batch_idx)
        return self.w * batch.to(self.w.dtype).mean()

    def configure_optimizers(self) -> Any:
        if self.configure is not None:
            return self.configure(self)
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        if not self.with_scheduler:
            return optimizer
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Spy(L.Callback):
    """A user's callback that writes what it is shown into a record."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.batch_idx = -1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        for optimizer in trainer.optimizers:
            optimizer.register_step_pre_hook(lambda opt, *_: self.record.lrs.append(opt.param_groups[0]["lr"]))
            optimizer.register_step_post_hook(lambda *_: self.record.parameters.append(flat_parameters(pl_module)))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batch_idx = batch_idx
        self.record.factors.append(int(trainer.accumulate_grad_batches))

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self.record.num_after_backward += 1

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.record.gradients.append(flat_gradient(pl_module))
        self.record.batch_of_step.append(self.batch_idx)
        self.record.epoch_of_step.append(trainer.current_epoch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self.record.losses.append(loss.item() if isinstance(loss, Tensor) else loss)


class Memory(Logger):
    """A logger that keeps its points in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int | None, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "memory"

    @property
    def version(self) -> str:
        return "0"

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.points.append((step, dict(metrics)))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Hyperparameters are of no interest here."""


class Batches(Dataset):
    """A dataset whose elements are whole batches."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = list(batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


class Stream(IterableDataset):
    """The same batches without a length."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = list(batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def make_loader(batches: Iterable[Any], with_length: bool = True) -> DataLoader:
    """A loader that yields exactly these batches every epoch, with or without a length."""
    return DataLoader(Batches(batches) if with_length else Stream(batches), batch_size=None, collate_fn=_same)


def _same(batch: Any) -> Any:
    return batch


def numbers(*sizes: int, start: int = 1) -> list[Tensor]:
    """Batches of the given sizes that hold the numbers 1, 2, 3, ... in order.

    ``numbers(4, 4, 2)`` are the ten samples in loader batches of 4, 4 and 2; ``numbers(*[1] * 10)`` ten batches of one.
    """
    values = torch.arange(start, start + sum(sizes), dtype=torch.float32)
    return list(values.split(list(sizes)))


def singles(count: int) -> list[Tensor]:
    """The numbers 1 to ``count``, each a batch of its own."""
    return numbers(*[1] * count)


def make_trainer(callbacks: Iterable[Any] = (), **options: Any) -> L.Trainer:
    """A Trainer that writes nothing, shows nothing and keeps nothing."""
    quiet = dict(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*not used.*", UserWarning)  # a GPU that is there and not wanted
        return L.Trainer(callbacks=list(callbacks), **{**quiet, **options})


def train(
    module: Spied,
    batches: Any,
    accumulation: Any = None,
    *,
    callbacks: Iterable[Any] = (),
    last: Iterable[Any] = (),
    val: Any = None,
    log: bool = False,
    **options: Any,
) -> Record:
    """Train ``module`` on ``batches`` and return what happened.

    Args:
        module: any :class:`Spied` module.
        batches: a list of batches, or anything that Lightning takes as a training loader.
        accumulation: a ``GradientAccumulation``, or what its first argument takes, or ``None`` for Lightning alone.
        callbacks: further callbacks, before the accumulation.
        last: further callbacks, after it.
        val: batches or loader of a validation.
        log: whether to keep every logged point.
        options: for the Trainer.
    """
    record = Record(module=module)
    if accumulation is not None and not isinstance(accumulation, L.Callback):
        accumulation = GradientAccumulation(accumulation)
    if log:
        options = {"logger": Memory(), "log_every_n_steps": 1, **options}
    own = [] if accumulation is None else [accumulation]
    trainer = make_trainer([Spy(record), *callbacks, *own, *last], **options)
    return fit(trainer, module, batches, record, val)


def fit(trainer: L.Trainer, module: Spied, batches: Any, record: Record, val: Any = None) -> Record:
    """Run ``trainer.fit`` and finish the record. The trainer must already hold a :class:`Spy` of it."""
    module.record, record.trainer = record, trainer
    loader = make_loader(batches) if isinstance(batches, list) else batches
    val = make_loader(val) if isinstance(val, list) else val
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer.fit(module, loader, val)
        finally:
            record.warnings += [str(warning.message) for warning in caught]
            record.global_step = trainer.global_step
            for config in trainer.lr_scheduler_configs:
                record.num_scheduler_steps = config.scheduler.last_epoch
            if isinstance(trainer.logger, Memory):
                record.logged = trainer.logger.points
    return record
