"""Counting what a micro-batch weighs: samples, tokens, valid pixels, or what the user says.

Pure: knows neither Lightning nor processes.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_accum.errors import ConfigError, expected


class Weight(ABC):
    """What a micro-batch weighs: the number of items that its mean loss is a mean over."""

    needs_outputs: bool = False
    """Whether the weight is only known after ``training_step``."""

    @abstractmethod
    def __call__(self, batch: Any, outputs: Any = None) -> Any:
        """Return a number, a tensor of one element, or a mapping from the names of loss terms to these."""


@dataclass(frozen=True)
class Samples(Weight):
    """The samples of the batch: the common first dimension of its tensors.

    Example:
        >>> Samples()({"image": torch.zeros(3, 1, 8, 8), "label": torch.zeros(3)})
        3
    """

    def __call__(self, batch: Any, outputs: Any = None) -> int:
        """Return the number of samples; raise :class:`ConfigError` if the batch does not say."""
        return count_samples(batch)


@dataclass(frozen=True)
class Equal(Weight):
    """Every micro-batch weighs the same, whatever it holds: a mean of means, as trainers do by default."""

    def __call__(self, batch: Any, outputs: Any = None) -> int:
        """Return 1."""
        return 1


@dataclass(frozen=True)
class Tokens(Weight):
    """The labels that a language model's loss counts.

    Args:
        labels: key (or position) of the labels in the batch, of shape ``(samples, tokens)``.
        ignore_index: the label that the loss leaves out.
        shift: whether the model itself compares token t with label t + 1, as causal models of Hugging Face do; the
            first label of each sample is then never predicted and not counted.

    Example:
        >>> Tokens()({"labels": torch.tensor([[5, 6, 7], [5, -100, -100]])}).item()
        2
        >>> Tokens(shift=False)({"labels": torch.tensor([[5, 6, 7], [5, -100, -100]])}).item()
        4
    """

    labels: str | int = "labels"
    ignore_index: int = -100
    shift: bool = True

    def __call__(self, batch: Any, outputs: Any = None) -> Tensor:
        """Return the number of counted labels, a 0-d integer tensor on the labels' device."""
        labels = pick(batch, self.labels, "Tokens(labels=...)")
        if self.shift:
            labels = labels[..., 1:]
        return torch.count_nonzero(labels != self.ignore_index)


@dataclass(frozen=True)
class Pixels(Weight):
    """The valid pixels of a segmentation mask.

    Args:
        mask: key or position of the mask in the batch, integers of shape ``(samples, height, width)``. A batch that is
            a pair needs no key: its second element is the mask.
        ignore_index: the class that the loss leaves out.

    Example:
        >>> Pixels()((torch.zeros(1, 3, 2, 2), torch.tensor([[[0, 255], [4, 4]]]))).item()
        3
    """

    mask: str | int = "mask"
    ignore_index: int = 255

    def __call__(self, batch: Any, outputs: Any = None) -> Tensor:
        """Return the number of valid pixels, a 0-d integer tensor on the mask's device."""
        is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2
        key = 1 if is_pair and self.mask == "mask" else self.mask
        return torch.count_nonzero(pick(batch, key, "Pixels(mask=...)") != self.ignore_index)


@dataclass(frozen=True)
class Returned(Weight):
    """What ``training_step`` returns beside the loss: ``{"loss": ..., "num_items": ...}``.

    Both may be mappings with the same keys: several loss terms, each a mean over its own items, whose sum is the loss.

    Example:
        >>> Returned()(None, {"loss": torch.tensor(0.5), "num_items": 7})
        7
    """

    needs_outputs = True

    def __call__(self, batch: Any, outputs: Any = None) -> Any:
        """Return ``outputs["num_items"]``; raise :class:`ConfigError` if it is not there."""
        if not isinstance(outputs, Mapping) or "num_items" not in outputs:
            got = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
            raise expected("{'loss': ..., 'num_items': ...} from training_step", got, "weight='returned'")
        return outputs["num_items"]


@dataclass(frozen=True)
class FromBatch(Weight):
    """A function of the batch alone, which may therefore also decide where a window ends (``unit="items"``).

    Example:
        >>> FromBatch(lambda batch: batch["mask"].sum())({"mask": torch.tensor([1, 0, 1])}).item()
        2
    """

    function: Callable[[Any], Any]

    def __call__(self, batch: Any, outputs: Any = None) -> Any:
        """Return ``function(batch)``."""
        return self.function(batch)


@dataclass(frozen=True)
class FromOutputs(Weight):
    """A function of the batch and of what ``training_step`` returned.

    Example:
        >>> FromOutputs(lambda batch, outputs: outputs["num_boxes"])(None, {"num_boxes": 3})
        3
    """

    function: Callable[[Any, Any], Any]
    needs_outputs = True

    def __call__(self, batch: Any, outputs: Any = None) -> Any:
        """Return ``function(batch, outputs)``."""
        return self.function(batch, outputs)


_BY_NAME: dict[str, type[Weight]] = {
    "samples": Samples,
    "tokens": Tokens,
    "pixels": Pixels,
    "equal": Equal,
    "returned": Returned,
}


def as_weight(value: Any) -> Weight:
    """Return the weight that ``value`` names or is.

    Args:
        value: one of the names ``samples``, ``tokens``, ``pixels``, ``equal``, ``returned``; a :class:`Weight`; or a
            callable of (batch, outputs).

    Raises:
        ConfigError: for anything else.

    Example:
        >>> as_weight("tokens")
        Tokens(labels='labels', ignore_index=-100, shift=True)
    """
    if isinstance(value, Weight):
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]()
    if isinstance(value, type) and issubclass(value, Weight):
        return value()
    if callable(value):
        _check_takes_two(value)
        return FromOutputs(value)
    raise expected(f"one of {', '.join(_BY_NAME)}, a Weight, or a callable of (batch, outputs)", value, "weight=")


def _check_takes_two(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(None, None)
    except ValueError:
        return  # a builtin that does not say what it takes
    except TypeError:
        do = "For a function of the batch alone give FromBatch(function)."
        raise expected("a callable of (batch, outputs)", function, "weight=", do) from None


def pick(batch: Any, key: str | int, where: str) -> Tensor:
    """Return the tensor at ``key`` of a mapping, sequence or object; raise :class:`ConfigError` if there is none."""
    try:
        is_keyed = isinstance(batch, Mapping) or (isinstance(batch, (tuple, list)) and isinstance(key, int))
        found = batch[key] if is_keyed else getattr(batch, str(key))
    except (KeyError, IndexError, TypeError, AttributeError):
        found = None
    if not isinstance(found, Tensor):
        keys = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
        raise expected(f"a batch with a tensor at {key!r}", keys, where, "Name the key or position that holds it.")
    return found


def count_samples(batch: Any) -> int:
    """Return the number of samples of a batch: the first dimension that all its tensors share.

    Tensors may stand in mappings, sequences, named tuples and dataclasses, at any depth; strings count one sample
    each in a sequence of strings; 0-d tensors and other constants are not looked at. An object with an integer
    ``batch_size`` or ``num_graphs`` is believed.

    Raises:
        ConfigError: if there is no tensor, or the tensors' first dimensions differ.

    Example:
        >>> count_samples([torch.zeros(4, 2), {"label": torch.zeros(4), "names": ["a", "b", "c", "d"]}])
        4
    """
    if isinstance(batch, Tensor) and batch.ndim:
        return int(batch.shape[0])
    if not isinstance(batch, (tuple, list, dict)):
        told = getattr(batch, "batch_size", None) or getattr(batch, "num_graphs", None)
        if isinstance(told, (int, torch.Size)):
            return told if isinstance(told, int) else int(told[0])
    sizes: set[int] = set()
    _add_leading_sizes(batch, sizes)
    if len(sizes) != 1:
        problem = f"tensors with first dimensions {sorted(sizes)}" if sizes else f"no tensor in {type(batch).__name__}"
        raise ConfigError(
            f"expected a batch whose tensors share their first dimension, but got {problem} (in counting samples). "
            "Return {'loss': ..., 'num_items': ...} from training_step, give weight= a callable of (batch, outputs), "
            "or weight='equal' if all micro-batches weigh the same."
        )
    return sizes.pop()


def _add_leading_sizes(batch: Any, sizes: set[int]) -> None:
    if isinstance(batch, Tensor):
        if batch.ndim:
            sizes.add(batch.shape[0])
    elif isinstance(batch, (tuple, list)):
        if batch and isinstance(batch[0], str) and all(isinstance(value, str) for value in batch):
            sizes.add(len(batch))
        else:
            for value in batch:
                _add_leading_sizes(value, sizes)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _add_leading_sizes(value, sizes)
    elif is_dataclass(batch) and not isinstance(batch, type):
        for field in fields(batch):
            _add_leading_sizes(getattr(batch, field.name), sizes)
