"""Counting samples, tokens and pixels in the batches that people have."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from lightning_accum import Equal, FromBatch, FromOutputs, Pixels, Returned, Samples, Tokens
from lightning_accum.counting import as_weight, count_samples
from lightning_accum.errors import ConfigError

Pair = namedtuple("Pair", ["image", "label"])


@dataclass
class Batch:
    image: torch.Tensor
    names: list[str]
    scale: float = 1.0


ZEROS = torch.zeros(5, 3)


@pytest.mark.parametrize(
    "batch",
    [
        ZEROS,
        [ZEROS, torch.zeros(5)],
        (ZEROS, {"label": torch.zeros(5), "names": list("abcde")}),
        {"image": ZEROS, "scale": torch.tensor(2.0), "id": 7},
        Pair(ZEROS, torch.zeros(5)),
        Batch(ZEROS, list("abcde")),
        UserDict(input_ids=ZEROS),
        OrderedDict(x=[ZEROS, [ZEROS]]),
        SimpleNamespace(batch_size=5),
        SimpleNamespace(num_graphs=5),
        list("abcde"),
    ],
)
def test_count_samples_finds_the_shared_first_dimension(batch) -> None:
    assert count_samples(batch) == 5


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ([torch.zeros(3, 8, 8), torch.zeros(5, 4)], r"\[3, 5\]"),
        ({"id": 7}, "no tensor in dict"),
        (None, "no tensor in NoneType"),
        (torch.tensor(1.0), "no tensor in Tensor"),
    ],
)
def test_count_samples_of_an_unclear_batch_says_what_to_do(batch, problem) -> None:
    with pytest.raises(ConfigError, match=f"{problem}.*num_items.*weight='equal'"):
        count_samples(batch)


def test_tokens_count_what_a_shifted_loss_counts() -> None:
    labels = torch.tensor([[1, 2, -100, 4], [-100, 5, -100, -100], [3, -100, -100, -100]])
    logits = torch.randn(3, 4, 7)
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="none"
    )
    assert Tokens()({"labels": labels}).item() == torch.count_nonzero(loss).item() == 3
    assert Tokens(shift=False)({"labels": labels}).item() == 5


def test_tokens_may_have_another_key_and_ignore_index() -> None:
    assert Tokens("target", ignore_index=0, shift=False)({"target": torch.tensor([[0, 1, 2]])}).item() == 2


def test_pixels_count_what_is_not_ignored_in_mappings_pairs_and_objects() -> None:
    mask = torch.tensor([[[0, 255], [3, 1]]])
    assert Pixels()({"mask": mask}).item() == 3
    assert Pixels()((torch.zeros(1, 3, 2, 2), mask)).item() == 3
    assert Pixels()(SimpleNamespace(mask=mask)).item() == 3
    assert Pixels(mask="y", ignore_index=0)({"y": mask}).item() == 3


@pytest.mark.parametrize("weight", [Pixels(), Tokens(), Pixels(mask=4)])
def test_weight_without_its_tensor_names_the_keys_there_are(weight) -> None:
    with pytest.raises(ConfigError, match="a batch with a tensor at .*image"):
        weight({"image": torch.zeros(1)})


@pytest.mark.parametrize(
    ("value", "weight"),
    [
        ("samples", Samples()),
        ("tokens", Tokens()),
        ("pixels", Pixels()),
        ("equal", Equal()),
        ("returned", Returned()),
        (Pixels(ignore_index=0), Pixels(ignore_index=0)),
        (Tokens, Tokens()),
    ],
)
def test_as_weight_takes_names_and_weights(value, weight) -> None:
    assert as_weight(value) == weight


def test_as_weight_of_a_function_sees_batch_and_outputs() -> None:
    weight = as_weight(lambda batch, outputs: batch + outputs)
    assert isinstance(weight, FromOutputs) and weight.needs_outputs and weight(1, 2) == 3
    assert not FromBatch(len).needs_outputs and FromBatch(len)([1, 2]) == 2


@pytest.mark.parametrize("value", ["token", 4, None])
def test_as_weight_of_something_else_lists_the_names(value) -> None:
    with pytest.raises(ConfigError, match="samples, tokens, pixels, equal, returned"):
        as_weight(value)


@pytest.mark.parametrize("outputs", [torch.tensor(1.0), {"loss": torch.tensor(1.0)}, None])
def test_returned_without_num_items_says_what_to_return(outputs) -> None:
    with pytest.raises(ConfigError, match="num_items"):
        Returned()(None, outputs)
