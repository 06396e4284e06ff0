"""A swap finds every layer, keeps what belongs to it, and leaves nothing behind."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightning_accum.errors import ConfigError
from lightning_accum.norms import GroupNormAct, count_groups, register_norm, swap_norms
from lightning_accum.norms import swap as swap_module


@pytest.fixture
def rules(monkeypatch):
    """Let a test register rules that no other test sees."""
    copies = {policy: dict(rules) for policy, rules in swap_module._RULES.items()}
    monkeypatch.setattr(swap_module, "_RULES", copies)


class ActivatedNorm(nn.BatchNorm2d):
    """Like timm's: normalises, drops out, activates."""

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        self.drop = nn.Identity()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class OwnForward(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) * 2


class Renamed(nn.BatchNorm2d):
    """A subclass that changes nothing."""


@pytest.mark.parametrize(
    ("num_channels", "num_groups"),
    [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 2),
        (8, 4),
        (16, 8),
        (24, 8),
        (32, 16),
        (40, 8),
        (64, 32),
        (72, 8),
        (96, 32),
        (2048, 32),
    ],
)
def test_groups_divide_the_channels_and_hold_two_of_them(num_channels, num_groups):
    assert count_groups(num_channels) == num_groups
    assert num_channels % num_groups == 0
    assert num_channels == 1 or num_channels // num_groups >= 2


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (nn.BatchNorm1d, (2, 8, 5)),
        (nn.BatchNorm1d, (2, 8)),
        (nn.BatchNorm2d, (2, 8, 4, 4)),
        (nn.BatchNorm3d, (2, 8, 2, 2, 2)),
        (nn.SyncBatchNorm, (2, 8, 4, 4)),
        (Renamed, (2, 8, 4, 4)),
        (ActivatedNorm, (2, 8, 4, 4)),
    ],
)
def test_swapped_layer_gives_each_sample_what_it_gives_it_alone(kind, shape):
    model = nn.Sequential(kind(8))
    assert swap_norms(model).num_swapped == 1
    assert isinstance(model[0], nn.GroupNorm)
    batch = torch.randn(shape)
    alone = torch.cat([model(sample[None]) for sample in batch])
    torch.testing.assert_close(model(batch), alone)
    assert alone.abs().sum() > 1  # one channel a group would erase a 1 x 1 map


def test_features_of_a_linear_layer_stay_tellable_apart():
    model = nn.Sequential(nn.BatchNorm1d(4))
    swap_norms(model)
    assert len({round(float(value), 4) for value in model(torch.tensor([[1.0, 2.0, 3.0, 9.0]])).flatten()}) == 4


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, ActivatedNorm])
def test_swap_keeps_parameters_eps_dtype_mode_and_activation(kind):
    norm = kind(8).double().eval()
    norm.eps = 0.25
    norm.weight.requires_grad_(False)
    weight, bias = norm.weight, norm.bias
    model = nn.ModuleDict({"norm": norm})
    swap_norms(model)
    swapped = model["norm"]
    assert swapped.weight is weight and swapped.bias is bias
    assert (swapped.eps, swapped.training, swapped.weight.requires_grad) == (0.25, False, False)
    assert swapped.affine
    assert {name for name, _ in model.named_parameters()} == {"norm.weight", "norm.bias"}
    if kind is ActivatedNorm:
        assert isinstance(swapped, GroupNormAct) and swapped.act is norm.act and swapped.drop is norm.drop
        assert swapped(torch.randn(1, 8, 4, 4).double()).min() == 0


def test_swap_of_a_layer_without_affine_has_no_parameters():
    model = nn.Sequential(nn.BatchNorm2d(8, affine=False))
    swap_norms(model)
    assert not list(model.parameters()) and not model[0].affine
    assert model(torch.randn(1, 8, 4, 4)).shape == (1, 8, 4, 4)


def test_optimizer_made_before_the_swap_still_holds_the_parameters():
    model = nn.Sequential(nn.BatchNorm2d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    swap_norms(model)
    model(torch.randn(1, 4, 4, 4)).pow(3).sum().backward()
    before = model[0].bias.clone()
    optimizer.step()
    assert not torch.equal(before, model[0].bias)


def test_shared_layer_is_swapped_once_and_still_shared():
    norm = nn.BatchNorm2d(4)
    model = nn.ModuleDict({"first": nn.Sequential(norm, nn.ReLU()), "second": norm})
    report = swap_norms(model)
    assert model["second"] is model["first"][0]
    assert report.num_swapped == 1
    assert report.findings[0].names == ("first.0", "second")


def test_shared_block_is_swapped_under_both_names():
    block = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    model = nn.Sequential(block, block)
    assert swap_norms(model).num_swapped == 1
    assert model[0][1] is model[1][1] and isinstance(model[0][1], nn.GroupNorm)


def test_every_container_is_searched():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of_its_own = nn.BatchNorm2d(4)
            self.listed = nn.ModuleList([nn.BatchNorm2d(4), nn.ModuleDict({"deep": nn.BatchNorm2d(4)})])

    model = Model()
    report = swap_norms(model)
    assert [found.names[0] for found in report.findings] == ["of_its_own", "listed.0", "listed.1.deep"]
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert swap_norms(model).findings == ()


def test_instance_norm_and_layer_norm_stay():
    model = nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.LayerNorm(4), nn.GroupNorm(2, 4))
    kinds = [type(module) for module in model]
    assert swap_norms(model).findings == ()
    assert [type(module) for module in model] == kinds


def test_keep_changes_nothing_and_reports_what_is_there():
    model = nn.Sequential(nn.BatchNorm2d(4))
    report = swap_norms(model, "keep")
    assert isinstance(model[0], nn.BatchNorm2d)
    assert (report.num_swapped, len(report.kept)) == (0, 1)


def test_dry_run_changes_nothing_and_reports_what_would_be_done():
    model = nn.Sequential(nn.BatchNorm2d(4))
    planned = swap_norms(model, dry_run=True)
    assert isinstance(model[0], nn.BatchNorm2d)
    assert planned == swap_norms(model)


@pytest.mark.parametrize(
    ("norm", "reason"), [(OwnForward(4), "forward of its own"), (nn.BatchNorm1d(1), "one channel")]
)
def test_layer_that_cannot_be_replaced_is_kept_and_says_why(norm, reason):
    model = nn.Sequential(norm)
    report = swap_norms(model)
    assert model[0] is norm
    assert reason in report.kept[0].reason


def test_registered_rule_of_the_nearest_class_decides(rules):
    @register_norm(OwnForward)
    def double(norm):
        return nn.Sequential(nn.GroupNorm(1, norm.num_features))

    model = nn.Sequential(OwnForward(4), nn.BatchNorm2d(4))
    report = swap_norms(model)
    assert isinstance(model[0], nn.Sequential) and isinstance(model[1], nn.GroupNorm)
    assert report.num_swapped == 2


def test_registered_rule_opens_a_policy_of_its_own(rules):
    register_norm(nn.BatchNorm2d, policy="none_at_all")(lambda norm: nn.Identity())
    model = nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm1d(4))
    assert swap_norms(model, "none_at_all").num_swapped == 1
    assert isinstance(model[0], nn.Identity) and isinstance(model[1], nn.BatchNorm1d)


def make_hooked():
    norm = nn.BatchNorm2d(4)
    norm.register_forward_hook(lambda *arguments: None)
    return norm


def make_parametrized():
    norm = nn.BatchNorm2d(4)
    nn.utils.parametrize.register_parametrization(norm, "weight", nn.Identity())
    return norm


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.LazyBatchNorm2d(), "layer '1'.*Pass one batch"),
        (make_hooked, "in layer '1'.*Add it after"),
        (make_parametrized, "in layer '1'"),
    ],
    ids=["lazy", "hooked", "parametrized"],
)
def test_layer_that_would_lose_something_is_an_error_and_nothing_is_swapped(make, message):
    model = nn.Sequential(nn.BatchNorm2d(4), make())
    with pytest.raises(ConfigError, match=message):
        swap_norms(model)
    assert type(model[0]) is nn.BatchNorm2d


def test_model_that_is_the_layer_itself_is_an_error():
    with pytest.raises(ConfigError, match="Wrap it in a module"):
        swap_norms(nn.BatchNorm2d(4))


def test_unknown_policy_is_an_error_that_names_the_choices():
    with pytest.raises(ConfigError, match="one of group, keep, but got 'grupp'"):
        swap_norms(nn.Sequential(), "grupp")


def test_report_prints_a_row_for_each_layer():
    text = str(swap_norms(nn.Sequential(nn.BatchNorm2d(72), OwnForward(4))))
    assert "GroupNorm(8 groups of 9)" in text
    assert "OwnForward" in text and "kept" in text
    assert "1 x BatchNorm2d -> GroupNorm, 1 x OwnForward -> kept" in text


def test_state_dict_of_a_swapped_model_loads_into_another_one():
    first = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8))
    second = copy.deepcopy(first)
    swap_norms(first)
    nn.init.normal_(first[1].weight)
    swap_norms(second)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second[1].weight, first[1].weight)
