"""Reading what a training_step returned."""

import pytest
import torch

from lightning_accum.errors import ConfigError
from lightning_accum.microbatch.outputs import read_output

CPU = torch.device("cpu")
ONE, TWO = torch.tensor(1.0), torch.tensor(2.0)


def test_read_output_of_a_tensor_is_the_loss_itself() -> None:
    step = read_output(ONE, CPU)
    assert step.losses == [ONE] and step.for_lightning is ONE


def test_read_output_of_a_mapping_keeps_its_other_keys() -> None:
    output = {"loss": ONE, "num_items": 3}
    step = read_output(output, CPU)
    assert step.losses == [ONE] and step.for_lightning is output


def test_read_output_of_terms_sums_them_without_changing_the_users_dict() -> None:
    output = {"loss": {"mask": TWO, "box": ONE}, "num_items": {"mask": 1, "box": 2}}
    step = read_output(output, CPU)
    assert step.names == ["box", "mask"] and step.losses == [ONE, TWO]
    assert step.for_lightning["loss"].item() == 3.0 and output["loss"]["box"] is ONE


def test_read_output_of_none_stands_in_a_loss_that_is_not_the_users() -> None:
    step = read_output(None, CPU)
    assert step.losses == [] and step.for_user is None and step.for_lightning.item() == 0.0


def test_read_output_of_something_else_is_handed_on_to_lightning() -> None:
    assert read_output(3.5, CPU).for_lightning == 3.5


def test_read_output_of_a_loss_for_each_sample_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"one element, but got \(4,\)"):
        read_output(torch.zeros(4), CPU)


@pytest.mark.parametrize(
    "terms", [{"a": 1.0}, {str(i): ONE for i in range(9)}, {}, {"a": torch.zeros(2)}, {1: ONE, "a": None}]
)
def test_read_output_of_impossible_terms_is_an_error(terms) -> None:
    with pytest.raises(ConfigError, match="1 to 8 loss terms, each a tensor"):
        read_output({"loss": terms}, CPU)
