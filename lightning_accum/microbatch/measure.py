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
        short_batch_ends_window: whether an epoch's short last batch closes its window whatever it counts.
    """

    def __init__(self, weight: Weight, ranks: Ranks, trainer: pl.Trainer, short_batch_ends_window: bool) -> None:
        self.weight = weight
        self.ranks = ranks
        self.trainer = trainer
        self.short_batch_ends_window = short_batch_ends_window
        self._names: list[str] | None = None
        self._early: float | None = None
        self.counts_early = (
            trainer.strategy.root_device.type != "cpu"
            and not weight.needs_outputs
            and not isinstance(weight, Samples)
            and not _lightning.changes_batch_on_device(trainer)
        )
        self._counts_samples = True
        self._same_on_all_ranks: float | None = None
        self._has_told_indivisible = False

    def weigh(self, batch: Any, step: StepOutput) -> tuple[list[float], float]:
        """Return the weight of each of the step's losses (none if it returned ``None``), and its samples.

        Raises:
            ConfigError: for a weight that is no number, negative or not finite, or two sources that contradict.
        """
        early, self._early = self._early, None
        if step.raw is None:
            return [], 0.0
        if type(self.weight) is Samples and not isinstance(step.raw, Mapping):
            num_samples = float(count_samples(batch))
            return [num_samples], num_samples
        value = self._value(batch, step, early)
        if step.names:
            return self._weights_of_terms(value, step.names), self._count_samples(batch)
        if isinstance(value, Mapping):
            raise expected("one weight for one loss", dict(value), self._where())
        return [read_weight(value, self._where())], self._count_samples(batch)

    def _value(self, batch: Any, step: StepOutput, early: float | None) -> Any:
        if isinstance(step.raw, Mapping) and "num_items" in step.raw:
            if not isinstance(self.weight, (Samples, Returned)):
                raise ConfigError(
                    "expected one source of the weight, but got 'num_items' from training_step and "
                    f"weight={self.weight} ({self._where()}). Leave out one of them."
                )
            return step.raw["num_items"]
        return early if early is not None else self.weight(batch, step.raw)

    def _weights_of_terms(self, value: Any, names: list[str]) -> list[float]:
        if self._names is None:
            self._names = names
        if names != self._names:
            what = f"the loss terms {self._names} in every micro-batch"
            raise expected(what, names, self._where(), "Weigh an absent one with 0.")
        if not isinstance(value, Mapping):
            return [read_weight(value, self._where())] * len(names)
        if sorted(value) != names:
            raise expected(f"a weight for each loss term {names}", sorted(value), self._where())
        return [read_weight(value[name], f"{name!r}, {self._where()}") for name in names]

    def _where(self) -> str:
        epoch_loop = self.trainer.fit_loop.epoch_loop
        return f"batch {epoch_loop.batch_idx} of epoch {self.trainer.current_epoch}, rank {self.trainer.global_rank}"

    def weigh_early(self, batch: Any) -> None:
        """Count the items of a batch while it still lies in host memory, where reading a count waits for nothing."""
        self._early = read_weight(self.weight(batch), self._where())

    def _count_samples(self, batch: Any) -> float:
        """Return the samples of a micro-batch; NaN where they cannot be counted and the weight does not need them."""
        if not self._counts_samples:
            return float("nan")
        try:
            return float(count_samples(batch))
        except ConfigError as error:
            self._counts_samples = False
            rank_zero_warn(f"Samples are not counted, so the effective batch size is not shown: {error}")
            return float("nan")

    def count_over_ranks(self, batch: Any, unit: Unit) -> float:
        """Return the samples or items of a micro-batch over all ranks, the same on each of them.

        Items, and samples where ranks or micro-batches differ, take one scalar all-reduce a micro-batch; samples of a
        loader with one batch size take one a training.
        """
        if unit == "micro_batches":
            return 0.0
        if unit == "items":
            return self._count_items_over_ranks(batch)
        local = 0.0 if batch is None else float(count_samples(batch))
        if self.ranks.world_size == 1:
            return local
        if self._same_on_all_ranks is None:
            self._same_on_all_ranks = self._agree_on_batch_size(local)
        return self._same_on_all_ranks or self.ranks.sum([local])[0]

    def _count_items_over_ranks(self, batch: Any) -> float:
        if batch is None:
            return self.ranks.sum([0.0])[0]
        if self._early is None:
            self._early = read_weight(self.weight(batch), self._where())
        return self.ranks.sum([self._early])[0]

    def _agree_on_batch_size(self, local: float) -> float:
        """Return the samples of every micro-batch over all ranks, or 0 if that must be asked each time.

        A loader's batch size is believed where nothing can leave samples out: no collate function of the user's, and no
        short batch in the middle of a window.
        """
        loader = self.trainer.train_dataloader
        is_whole = self.short_batch_ends_window or getattr(loader, "drop_last", False)
        is_plain = getattr(loader, "collate_fn", None) is default_collate
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
