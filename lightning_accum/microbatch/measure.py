"""Measuring micro-batches: what each weighs, how many samples it holds, and what ranks hold together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch.utils.data import default_collate

from lightning_accum import _lightning
from lightning_accum.counting import Returned, Samples, Weight, count_samples
from lightning_accum.errors import ConfigError, expected
from lightning_accum.gradients.sync import Ranks
from lightning_accum.microbatch.outputs import StepOutput
from lightning_accum.weighting import read_weight
from lightning_accum.window import Unit


class BatchMeter:
    """Counts samples and items of micro-batches.

    Args:
        weight: what a micro-batch weighs.
        ranks: the processes that train together.
        trainer: asked where we are, for messages.
        needs_samples: whether something, such as a schedule, looks at the number of samples.
        short_batch_ends_window: whether an epoch's short last batch closes its window whatever it counts.
    """

    def __init__(
        self,
        weight: Weight,
        ranks: Ranks,
        trainer: pl.Trainer,
        short_batch_ends_window: bool,
        needs_samples: bool = False,
    ) -> None:
        self.weight = weight
        self.ranks = ranks
        self.trainer = trainer
        self.short_batch_ends_window = short_batch_ends_window
        self.needs_samples = needs_samples
        self._names: list[str] | None = None
        self._early: Any = None
        self.counts_early = (
            trainer.strategy.root_device.type != "cpu"
            and not weight.needs_outputs
            and not isinstance(weight, Samples)
            and not _lightning.changes_batch(trainer, hooks=_lightning.BATCH_HOOKS[1:])
        )
        self._num_samples = 0.0
        self._uncounted: ConfigError | None = None
        self._has_told_uncounted = False
        self._same_on_all_ranks: float | None = None
        self._loader: Any = None
        self._has_told_indivisible = False

    def weigh(self, batch: Any, step: StepOutput) -> tuple[list[float], float]:
        """Return the weight of each of the step's losses (none if it returned ``None``), and its samples.

        Raises:
            ConfigError: for a weight that is no number, negative or not finite, or two sources that contradict.
        """
        early, self._early = self._early, None
        if step.raw is None:
            return [], 0.0
        has_own = isinstance(step.raw, Mapping) and "num_items" in step.raw
        if type(self.weight) is Samples and not has_own:
            if self._uncounted is not None:
                raise self._uncounted
            if not step.names:
                return [self._num_samples], self._num_samples
            early = self._num_samples
        value = self._returned(step, early) if has_own else self.weight(batch, step.raw) if early is None else early
        if isinstance(value, ConfigError):
            raise value
        if step.names:
            return self._weights_of_terms(value, step.names), self._told_num_samples()
        if isinstance(value, Mapping):
            raise expected("one weight for one loss", dict(value), self._where())
        return [read_weight(value, self._where())], self._told_num_samples()

    def see(self, batch: Any) -> None:
        """Count a micro-batch before ``training_step``, which may change it."""
        try:
            self._num_samples, self._uncounted = float(count_samples(batch)), None
        except ConfigError as error:
            self._num_samples, self._uncounted = float("nan"), error
        if not self.weight.needs_outputs and type(self.weight) is not Samples:
            try:
                self.weigh_early(batch)
            except ConfigError as error:
                self._early = error

    def _returned(self, step: StepOutput, early: Any) -> Any:
        """Return the weight that ``training_step`` gave, unless another source contradicts it."""
        if not isinstance(self.weight, (Samples, Returned)) or early is not None:
            raise ConfigError(
                "expected one source of the weight, but got 'num_items' from training_step and "
                f"weight={self.weight} ({self._where()}). Leave out one of them; windows in items need the latter."
            )
        return step.raw["num_items"]

    def _weights_of_terms(self, value: Any, names: list[str]) -> list[float]:
        if self._names is None:
            self._names = names
        if names != self._names:
            what = f"the loss terms {self._names} in every micro-batch"
            raise expected(what, names, self._where(), "Weigh an absent one with 0.")
        if not isinstance(value, Mapping):
            return [read_weight(value, self._where())] * len(names)
        if sorted(value, key=str) != names:
            raise expected(f"a weight for each loss term {names}", sorted(value, key=str), self._where())
        return [read_weight(value[name], f"{name!r}, {self._where()}") for name in names]

    def _where(self) -> str:
        epoch_loop = self.trainer.fit_loop.epoch_loop
        return f"batch {epoch_loop.batch_idx} of epoch {self.trainer.current_epoch}, rank {self.trainer.global_rank}"

    def weigh_early(self, batch: Any) -> None:
        """Weigh a batch, unless that was done: before its transfer to a device, or at the latest before it runs."""
        if self._early is None:
            self._early = self.weight(batch)

    def forget_batch(self) -> None:
        """Forget what was weighed of a batch that will not run."""
        self._early = None

    def _told_num_samples(self) -> float:
        """Return the samples of the micro-batch; NaN, told once, if they cannot be counted and nothing needs them."""
        if self._uncounted is not None:
            if self.needs_samples:
                raise self._uncounted
            if not self._has_told_uncounted:
                rank_zero_warn(f"Samples are not counted, so the effective batch size is not shown: {self._uncounted}")
            self._has_told_uncounted = True
        return self._num_samples

    def count_over_ranks(self, batch: Any, unit: Unit) -> float:
        """Return the samples or items of a micro-batch over all ranks, the same on each of them.

        Items, and samples where ranks or micro-batches differ, take one scalar all-reduce a micro-batch; samples of a
        loader with one batch size take one a training.
        """
        if unit == "items":
            return self._count_items_over_ranks(batch)
        local = 0.0 if batch is None else float(count_samples(batch))
        if self.ranks.world_size == 1:
            return local
        loader = self.trainer.train_dataloader
        if self._same_on_all_ranks is None or loader is not self._loader:
            self._loader = loader
            self._same_on_all_ranks = self._agree_on_batch_size(local)
        return self._same_on_all_ranks or self.ranks.sum([local])[0]

    def _count_items_over_ranks(self, batch: Any) -> float:
        if batch is None:
            return self.ranks.sum([0.0])[0]
        self.weigh_early(batch)
        self._early = read_weight(self._early, self._where())
        return self.ranks.sum([self._early])[0]

    def _agree_on_batch_size(self, local: float) -> float:
        """Return the samples of every micro-batch over all ranks, or 0 if that must be asked each time.

        A loader's batch size is believed where nothing can leave samples out: no collate function of the user's, and no
        short batch in the middle of a window, no hook that sees the batch on its way.
        """
        loader = self.trainer.train_dataloader
        is_whole = self.short_batch_ends_window or getattr(loader, "drop_last", False)
        is_plain = getattr(loader, "collate_fn", None) is default_collate and not _lightning.changes_batch(self.trainer)
        is_fixed = is_whole and is_plain and getattr(loader, "batch_size", None) == local
        num_fixed, total = self.ranks.sum([float(is_fixed), local])
        return total if num_fixed == self.ranks.world_size else 0.0

    def tell_indivisible(self, target: float, count: float, unit: Unit) -> None:
        """Say once that micro-batches do not add up to the target, with both numbers and what is done."""
        if self._has_told_indivisible or count <= 0 or target % count == 0 or unit == "items":
            return
        self._has_told_indivisible = True
        reached = -(-target // count) * count
        rank_zero_warn(
            f"An effective batch of {target:g} {unit} is no multiple of a micro-batch's {count:g} (over "
            f"{self.ranks.world_size} rank(s)): the window closes at {reached:g}. Further ones are not told."
        )
