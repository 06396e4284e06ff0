"""Scaling gradients, and keeping a worthless micro-batch out of them."""

import torch
from torch.nn import Parameter

from lightning_accum.gradients.rescale import scale_gradients, zeroed_gradients


def parameter_with(grad: torch.Tensor | None) -> Parameter:
    parameter = Parameter(torch.zeros(3, dtype=torch.float32 if grad is None else grad.dtype))
    parameter.grad = grad
    return parameter


def test_scale_gradients_of_several_dtypes_and_layouts() -> None:
    sparse = Parameter(torch.zeros(3))
    sparse.grad = torch.tensor([0.0, 2.0, 0.0]).to_sparse()
    dtypes = [torch.float32, torch.float64, torch.bfloat16]
    parameters = [parameter_with(torch.tensor([1.0, 2.0, 3.0], dtype=dtype)) for dtype in dtypes]
    scale_gradients([*parameters, parameter_with(None), sparse], 0.5)
    for parameter in parameters:
        assert parameter.grad.tolist() == [0.5, 1.0, 1.5]
    assert sparse.grad.to_dense().tolist() == [0.0, 1.0, 0.0]


def test_scale_gradients_by_one_touches_nothing() -> None:
    parameter = parameter_with(torch.ones(3))
    version = parameter.grad._version
    scale_gradients([parameter], 1.0)
    assert parameter.grad._version == version


def test_zeroed_gradients_keep_what_was_there_and_end_with_the_block() -> None:
    parameter, frozen = parameter_with(torch.ones(3)), Parameter(torch.ones(3), requires_grad=False)
    with zeroed_gradients([parameter, frozen]):
        ((parameter + frozen).sum() / 0.0 * 0.0).backward()
    assert parameter.grad.tolist() == [1.0, 1.0, 1.0]
    parameter.sum().backward()
    assert parameter.grad.tolist() == [2.0, 2.0, 2.0]


def test_zeroed_gradients_end_with_an_exception() -> None:
    parameter = parameter_with(None)
    try:
        with zeroed_gradients([parameter]):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    parameter.sum().backward()
    assert parameter.grad.tolist() == [1.0, 1.0, 1.0]
