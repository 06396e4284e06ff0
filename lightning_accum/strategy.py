"""The strategy override: Lightning's own strategies, with the window's arithmetic at the four places that need it.

It reaches a trainer by name (``Trainer(strategy="ddp_accum")``) or by adoption: the callback extends the class of the
strategy that the trainer already has, and gives it back at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.strategies import (
    DDPStrategy,
    ParallelStrategy,
    SingleDeviceStrategy,
    Strategy,
    StrategyRegistry,
)
from torch import Tensor
from torch.optim import Optimizer

from lightning_accum.errors import expected
from lightning_accum.gradients.rescale import zeroed_gradients

if TYPE_CHECKING:
    from lightning_accum.accumulator import Accumulator

SUPPORTED: tuple[type[Strategy], ...] = (SingleDeviceStrategy, DDPStrategy)
"""Strategies whose windows are exact; others are refused by name."""


class AccumulationMixin(Strategy):
    """Weighs each loss, finishes each window, and keeps an epoch's last micro-batch from stepping where it should not.

    Without an ``accumulator``, or while no window is open (a tool trains without callbacks), it does nothing.
    A subclass of ``Strategy`` itself, because an object's class can only be replaced by one of the same base layout.
    """

    accumulator: Accumulator | None = None
    handles_gradient_accumulation: bool = False  # type: ignore[assignment]
    """Whether Lightning must not step at an epoch's last micro-batch merely because it is the last. A plain attribute,
    set for that micro-batch alone: Lightning asks for it six times a micro-batch."""

    def setup_environment(self) -> None:
        """Set the processes up; a strategy chosen by name brings the callback with it, before any state is restored."""
        from lightning_accum.callback import ensure_callback

        super().setup_environment()
        if self.lightning_module is not None:
            ensure_callback(self.lightning_module.trainer)

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """Move a batch; count its items first, while reading a count waits for no device."""
        accumulator = self.accumulator
        if accumulator is not None and (batch is None or accumulator.meter.counts_early):
            accumulator.see_host_batch(batch)
        return super().batch_to_device(batch, device, dataloader_idx)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Come last before the micro-batch runs: after all callbacks and the module had their say."""
        if self.accumulator is not None and self.accumulator.state.window is not None:
            self.accumulator.insist()
        super().on_train_batch_start(batch, batch_idx)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's ``training_step`` and weigh what it returns."""
        accumulator = self.accumulator
        if accumulator is None or accumulator.state.window is None:
            return super().training_step(*args, **kwargs)
        batch = args[0] if args else next(iter(kwargs.values()))
        accumulator.meter.see(batch)
        return accumulator.weigh(batch, super().training_step(*args, **kwargs))

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        """Go backward from the weighed loss; from nothing if the micro-batch holds no item."""
        accumulator = self.accumulator
        if accumulator is None or accumulator.state.window is None:
            return super().backward(closure_loss, optimizer, *args, **kwargs)
        loss = accumulator.loss_for_backward(closure_loss)
        if loss is not None:
            output = super().backward(loss, optimizer, *args, **kwargs)
            accumulator.witness.see()
            return output
        if not accumulator.must_join_reduction:
            return closure_loss.detach()
        parameters = [parameter for parameter in accumulator.parameters() if parameter.requires_grad]
        with zeroed_gradients(parameters):
            return super().backward(self._loss_without_items(parameters), optimizer, *args, **kwargs)

    def _loss_without_items(self, parameters: list[Any]) -> Tensor:
        """Return a loss whose backward reaches what the other ranks' backward reaches."""
        assert self.accumulator is not None and self.accumulator.step_output is not None
        losses = [loss for loss in self.accumulator.step_output.losses if loss.requires_grad]
        if losses:
            return torch.stack([loss.reshape(()) for loss in losses]).sum()
        return torch.stack([parameter.sum() for parameter in parameters]).sum()

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any | None = None, **kwargs: Any
    ) -> Any:
        """Run the window's last micro-batch, divide by what the window holds, then step; or do not step at all."""
        accumulator = self.accumulator
        if accumulator is None or accumulator.state.window is None:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        if not accumulator.window.closes:
            with self._without_sync():
                return closure()
        result = closure()
        if not accumulator.finish():
            return result
        output = super().optimizer_step(optimizer, accumulator.replay(closure, result), model, **kwargs)
        accumulator.commit()
        return output

    def _without_sync(self) -> AbstractContextManager[Any]:
        return self.block_backward_sync() if isinstance(self, ParallelStrategy) else nullcontext()


class SingleDeviceAccumStrategy(AccumulationMixin, SingleDeviceStrategy):
    """``SingleDeviceStrategy`` whose windows are exact; registered as ``single_device_accum``."""

    strategy_name = "single_device_accum"


class DDPAccumStrategy(AccumulationMixin, DDPStrategy):
    """``DDPStrategy`` whose windows are exact; registered as ``ddp_accum``."""

    strategy_name = "ddp_accum"


class AutoAccumStrategy(DDPAccumStrategy):
    """One device or DDP, whichever the trainer's devices ask for; registered as ``auto_accum``."""

    strategy_name = "auto_accum"

    def _configure_launcher(self) -> None:
        """Become the strategy for the devices that are known by now."""
        devices = self.parallel_devices or [torch.device("cpu")]
        if len(devices) * self.num_nodes > 1:
            self.__class__ = DDPAccumStrategy  # type: ignore[assignment]
            self._configure_launcher()
            return
        single = SingleDeviceAccumStrategy(devices[0], self.accelerator, self.checkpoint_io, self.precision_plugin)
        self.__class__ = SingleDeviceAccumStrategy  # type: ignore[assignment]
        self.__dict__ = single.__dict__


def adopt_strategy(strategy: Strategy, accumulator: Accumulator) -> None:
    """Let this one strategy object do its windows by ``accumulator``: same object, its class extended.

    Raises:
        ConfigError: for a strategy whose windows would not be exact.
    """
    if not isinstance(strategy, AccumulationMixin):
        if not isinstance(strategy, SUPPORTED):
            names = ", ".join(kind.__name__ for kind in SUPPORTED)
            do = "Its gradients are summed or divided in a way that is not handled."
            got = f"{type(strategy).__module__}.{type(strategy).__name__}"
            raise expected(f"a strategy among {names} of lightning.pytorch", got, "Trainer(strategy=...)", do)
        kind = type(strategy)
        strategy.__class__ = type(kind.__name__, (AccumulationMixin, kind), {"_adopted_from": kind})
    strategy.accumulator = accumulator  # type: ignore[attr-defined]


def release_strategy(strategy: Strategy) -> None:
    """Give the strategy its own class back."""
    if isinstance(strategy, AccumulationMixin):
        strategy.__dict__.pop("accumulator", None)
        strategy.__dict__.pop("handles_gradient_accumulation", None)
        strategy.__class__ = getattr(type(strategy), "_adopted_from", type(strategy))


def register_strategies() -> None:
    """Make the strategies known to ``Trainer(strategy=...)`` by name."""
    for kind in (AutoAccumStrategy, SingleDeviceAccumStrategy, DDPAccumStrategy):
        if kind.strategy_name not in StrategyRegistry:
            StrategyRegistry.register(kind.strategy_name, kind, description=(kind.__doc__ or "").split(";")[0])
