"""One training's accumulation: the windows of `window.py` and the sums of `weighting.py`, met by real micro-batches.

The callback tells it when a micro-batch begins, the strategy hands it what ``training_step`` returned, asks it for the
loss to go backward from, and lets it finish the window before the optimizer sees a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.nn import Parameter

from lightning_accum import _lightning
from lightning_accum.endings import skip_missing_batch
from lightning_accum.errors import ConfigError
from lightning_accum.gradients.losses import WindowLosses
from lightning_accum.gradients.rescale import scale_gradients
from lightning_accum.gradients.sync import Ranks
from lightning_accum.gradients.terms import TermGradients
from lightning_accum.microbatch.measure import BatchMeter
from lightning_accum.microbatch.outputs import StepOutput, read_output
from lightning_accum.progress import Progress
from lightning_accum.state import AccumulationState
from lightning_accum.weighting import MAX_TERMS, gradient_factor, loss_factor
from lightning_accum.window import Ahead, Divisor, OpenWindow, Window, WindowRules, fraction_of_training
from lightning_accum.witness import GradientWitness, tell_assigned_factor


@dataclass(frozen=True)
class ClosedWindow:
    """What is shown of a window after its optimizer step; sums are over all ranks."""

    mean_loss: Tensor
    num_micro_batches: int
    num_samples: float
    num_items: float


class Accumulator:
    """Weighs, sums and finishes the windows of one ``fit``.

    Args:
        trainer: the trainer, its strategy set up.
        rules: when windows open and close.
        meter: what a micro-batch weighs and holds.
        divisor: what a short window divides by.
        state: where everything that must survive is kept; changed in place.
    """

    def __init__(
        self, trainer: pl.Trainer, rules: WindowRules, meter: BatchMeter, divisor: Divisor, state: AccumulationState
    ) -> None:
        self.trainer = trainer
        self.rules = rules
        self.meter = meter
        self.divisor = divisor
        self.state = state
        self.ranks: Ranks = meter.ranks
        self.closed: ClosedWindow | None = None
        self.is_last_batch = False
        self.step_output: StepOutput | None = None
        self.is_reduced = True
        self._terms: TermGradients | None = None
        self._losses = WindowLosses(self.ranks.device)
        self._shown = Window(1)
        self._typical: list[float] = [0.0] * MAX_TERMS
        self.witness = GradientWitness(trainer.lightning_module)

    # ------------------------------------------------------------------ a micro-batch begins

    def begin(self, batch: Any, batch_idx: int, is_last: bool) -> None:
        """Put the micro-batch into the open window, or open one, and show the trainer the factor."""
        state, rules = self.state, self.rules
        self.closed = self.step_output = None
        self.is_last_batch = is_last
        count = 0.0 if rules.unit == "micro_batches" else self.meter.count_over_ranks(batch, rules.unit)
        if state.window is not None and state.window.closes:
            self._end_unstepped()
        window = state.window
        ahead = _MORE_TO_COME if window is not None and not is_last else self._ahead(batch_idx, is_last)
        if window is None:
            window = state.window = self._open(batch_idx, count, ahead)
        rules.extend(window, count, ahead)
        state.num_micro_steps += 1
        if is_last or self.trainer.strategy.handles_gradient_accumulation:
            self.hold_last_batch(is_last and not window.closes)
        self.insist()
        if window.shown_factor != self._shown or window.first != self._shown.first:
            self.show(window.as_window())

    def _open(self, batch_idx: int, count: float, ahead: Ahead) -> OpenWindow:
        self.is_reduced = True
        self._clear_gone()
        if self.ranks.world_size == 1:
            self._typical, self.state.references = self.state.references, [0.0] * MAX_TERMS
        window = self.rules.open(self.progress(), batch_idx=batch_idx, count=count, ahead=ahead)
        if self.rules.unit != "micro_batches":
            self.meter.tell_indivisible(window.target, count, self.rules.unit)
        return window

    def progress(self) -> Progress:
        """Return what training has done so far, over closed windows."""
        state, trainer = self.state, self.trainer
        batches = trainer.num_training_batches
        epochs = trainer.max_epochs
        total = int(batches * epochs) if epochs and epochs > 0 and batches != float("inf") else None
        max_steps = _lightning.max_steps_of(trainer)
        return Progress(
            epoch=trainer.current_epoch,
            num_optimizer_steps=state.num_optimizer_steps,
            num_micro_steps=state.num_micro_steps,
            num_samples=state.num_samples,
            num_items=state.num_items,
            fraction=fraction_of_training(state.num_micro_steps, state.num_optimizer_steps, total, max_steps),
        )

    def _ahead(self, batch_idx: int, is_last: bool) -> Ahead:
        batches = self.trainer.num_training_batches
        known = batches != float("inf")
        in_epoch = 1 if is_last else max(2, int(batches) - batch_idx) if known else None
        if self.rules.epoch_end != "carry":
            return Ahead(in_epoch)
        epochs = self.trainer.max_epochs
        if in_epoch is None or epochs is None or epochs < 0:
            return Ahead(in_epoch)
        epochs_left = epochs - 1 - self.trainer.current_epoch
        if epochs_left == 0:
            return Ahead(in_epoch, in_epoch)
        return Ahead(in_epoch, in_epoch + epochs_left * int(batches) if known else None)

    def hold_last_batch(self, is_held: bool) -> None:
        """Keep Lightning from stepping at the present micro-batch merely because it is its epoch's last."""
        self.trainer.strategy.handles_gradient_accumulation = is_held  # type: ignore[misc]

    def show(self, window: Window) -> None:
        """Let the trainer, and every other reader of its factor, see the window."""
        self.trainer.accumulate_grad_batches = self._shown = window

    def insist(self) -> None:
        """Show the window again if somebody else has set the trainer's factor."""
        if self.trainer.accumulate_grad_batches is not self._shown:
            tell_assigned_factor(self.trainer, self.rules.schedule)
            self.show(self._shown)

    # ------------------------------------------------------------------ its loss

    @property
    def window(self) -> OpenWindow:
        """The open window; only asked while there is one."""
        assert self.state.window is not None, "no micro-batch has begun"
        return self.state.window

    def weigh(self, batch: Any, output: Any) -> Any:
        """Add what ``training_step`` returned to the window's sums; return it in the form that Lightning takes."""
        if self.step_output is not None:
            self._begin_again()
        step = self.step_output = read_output(output, self.ranks.device)
        if not step.losses and step.raw is not None:
            return output  # nothing known: Lightning says what a training_step may return
        step.weights, num_samples = self.meter.weigh(batch, step)
        self._agree_on_references(step.weights)
        self.state.add(step.weights, num_samples)
        self._losses.add(step.losses, step.weights)
        return step.for_lightning

    def _agree_on_references(self, weights: list[float]) -> None:
        references = self.state.references
        if self.ranks.world_size == 1:
            for term, weight in enumerate(weights):
                if weight > FAR * references[term]:
                    self._raise_reference(term, weight)
        elif not any(references):
            self.state.references = self.ranks.max(weights + [0.0] * (MAX_TERMS - len(weights)))

    def _raise_reference(self, term: int, weight: float) -> None:
        """Let ``weight`` be the reference, or a typical weight if that is far above it; what is summed shrinks with it.

        A first micro-batch that holds next to nothing would otherwise make the window's sum overflow in half precision.
        """
        references, typical = self.state.references, self._typical[term]
        before, references[term] = references[term], weight if FAR * weight >= typical else typical
        if before and term == 0:
            scale_gradients(self.parameters(), before / references[term])
        elif before:
            self._term_gradients().scale(term, before / references[term])

    def _reference(self, term: int) -> float:
        return self.state.references[term] or 1.0

    def loss_for_backward(self, closure_loss: Tensor) -> Tensor | None:
        """Return the loss to go backward from, or ``None`` if none is needed.

        Gradients of further loss terms are added here to their own sums. Where ranks reduce in the backward, which
        happens once and must reach every parameter, the first term's gradient is added here as well.
        """
        step, factor = self.step_output, self.window.factor
        assert step is not None, "no training_step was weighed"
        weights = step.weights
        self.witness.check(self.window)
        for term in range(1, len(weights)):
            if weights[term] and step.losses[term].requires_grad:
                loss = step.losses[term] * loss_factor(weights[term], self._reference(term), factor)
                self._term_gradients().add(term, self._scaled(loss))
        if not weights or not weights[0] or (len(weights) > 1 and not step.losses[0].requires_grad):
            return None
        if len(weights) > 1 and self.must_join_reduction:
            loss = step.losses[0] * loss_factor(weights[0], self._reference(0), factor)
            self._term_gradients().add_to_grad(self._scaled(loss))
            return None
        if weights[0] != self._reference(0):
            return step.losses[0] * loss_factor(weights[0], self._reference(0), factor)
        if len(weights) == 1 and self.trainer.accumulate_grad_batches == factor:
            return closure_loss
        return step.losses[0] / factor

    def _scaled(self, loss: Tensor) -> Tensor:
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        return loss if scaler is None else scaler.scale(loss)

    @property
    def must_join_reduction(self) -> bool:
        """Whether other ranks may be waiting for this rank's backward, even if it has nothing to add."""
        return self.ranks.world_size > 1 and self.window.closes

    def parameters(self) -> list[Parameter]:
        """Return the module's and the optimizers' parameters, in an order that all ranks share."""
        groups = [group["params"] for optimizer in self.trainer.optimizers for group in optimizer.param_groups]
        listed = [self.trainer.lightning_module.parameters(), *groups]
        return list(dict.fromkeys(parameter for parameters in listed for parameter in parameters))

    def _term_gradients(self) -> TermGradients:
        if self._terms is None:
            self._terms = TermGradients(self.parameters())
        return self._terms

    # ------------------------------------------------------------------ the window ends

    def finish(self) -> bool:
        """Divide the window's gradients by its true total; return ``False`` if there is nothing to step with."""
        state, window = self.state, self.window
        local = [state.num_window_samples, state.num_contributing, *state.weights]
        (num_samples, num_contributing, *weights), losses = self.ranks.sum_with(local, self._losses.sums)
        if not any(weights):
            self._end_empty(num_samples)
            return False
        share = 1.0
        if self.divisor == "planned":
            share = window.share_held(num_contributing / self.ranks.world_size, self.rules.unit)
        self._rescale(weights, share)
        typical = [weight / num_contributing for weight in weights]
        self._next_references = [new or old for new, old in zip(typical, state.references, strict=True)]
        mean_loss = self._losses.mean(weights, losses)
        self._result = ClosedWindow(mean_loss, window.num_micro_batches, num_samples, sum(weights))
        return True

    def _rescale(self, weights: Sequence[float], share: float) -> None:
        factor, world_size = self.window.factor, self.ranks.world_size
        if not self.is_reduced:
            self.ranks.average_gradients(self.parameters())
        if weights[0]:
            scale = gradient_factor(weights[0], self._reference(0), factor, world_size, share)
            if scale != 1.0:  # the parameters of a large model are not even listed
                scale_gradients(self.parameters(), scale)
        for term in range(1, MAX_TERMS):
            if weights[term]:
                scale = gradient_factor(weights[term], self._reference(term), factor, world_size, share)
                self._term_gradients().apply(term, scale, self.ranks)
        self._terms = None

    def commit(self) -> None:
        """Count the window, after its optimizer step."""
        state, closed = self.state, self._result
        state.num_optimizer_steps += 1
        state.num_samples += closed.num_samples
        state.num_items += closed.num_items
        state.references = self._next_references
        state.clear_window()
        self.closed = closed

    def _end_unstepped(self) -> None:
        """Leave a window whose step the user's own ``optimizer_step`` did not make."""
        self.state.num_unstepped_windows += 1
        if self.state.num_unstepped_windows == 1:
            rank_zero_warn(
                f"{type(self.trainer.lightning_module).__name__}.optimizer_step ended a window without calling the "
                "optimizer's step through Lightning: its gradients are dropped, and the next window begins. Further "
                "ones are counted in num_unstepped_windows."
            )
        self.forget()

    def _end_empty(self, num_samples: float) -> None:
        """Leave a window that holds no item: nothing is updated, nothing counts as a step."""
        state, window = self.state, self.window
        state.num_empty_windows += 1
        state.num_samples += num_samples
        if state.num_empty_windows == 1:
            rank_zero_warn(
                f"The window of {window.num_micro_batches} micro-batches before batch {window.first} + "
                f"{window.num_micro_batches} of epoch {self.trainer.current_epoch} held no valid item on any rank: no "
                "optimizer step was made, no scheduler advanced. Further ones are counted in num_empty_windows."
            )
        _lightning.uncount_optimizer_step(self.trainer)
        self.hold_last_batch(self.is_last_batch)
        self.show(Window(window.num_micro_batches + 1, window.first))
        self.forget()

    def _begin_again(self) -> None:
        """Forget what the present micro-batch added, as its closure is evaluated once more.

        Raises:
            ConfigError: if the window holds more than this micro-batch.
        """
        if self.window.num_micro_batches > 1:
            raise ConfigError(
                "expected a closure that is evaluated once, but got a second evaluation in a window of "
                f"{self.window.num_micro_batches} micro-batches (only its last one could be evaluated anew). Use a "
                "factor of 1 with an optimizer that does so (LBFGS, SAM), or another optimizer."
            )
        self.state.clear_sums()
        self._terms = None
        self._clear_gone()

    def _clear_gone(self) -> None:
        """Forget what was kept of micro-batches whose gradients are about to be set to zero."""
        self._losses.clear()
        self.witness.open()

    def replay(self, closure: Callable[[], Any], result: Any) -> Callable[[], Any]:
        """Return a closure for the optimizer: the first call gives ``result``, a further one evaluates anew."""
        calls = 0

        def replayed() -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                return result
            again = closure()
            self.finish()
            return again

        return replayed

    def see_host_batch(self, batch: Any) -> None:
        """Look at a training batch before its transfer to the device; other stages' batches are none of ours."""
        if not self.trainer.training:
            return
        if batch is None:
            skip_missing_batch(self, *_lightning.place_of_next_batch(self.trainer))
        else:
            self.meter.weigh_early(batch)

    def forget(self) -> None:
        """Forget the open window, its gradients apart."""
        self._terms = None
        self.state.clear_window()


FAR = 16.0
"""A weight so many times another one is far above it."""

_MORE_TO_COME = Ahead()
