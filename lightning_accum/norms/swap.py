"""Replacing batch normalisation, which no scaling of gradients can make exact under accumulation.

BatchNorm normalises each micro-batch by its own mean and variance, so a window of micro-batches computes another
function than the large batch does. GroupNorm normalises each sample by itself: the same function for every batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from torch import Tensor, nn

from lightning_accum.errors import ConfigError, expected
from lightning_accum.norms.report import Finding, SwapReport

Rule = Callable[[nn.Module], "nn.Module | str"]
"""Makes the replacement of a layer, or says why it has to be kept."""

MOST_GROUPS: Final = 32
_LAZY: Final = (nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d)
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_RULES: dict[str, dict[type[nn.Module], Rule]] = {"group": {}, "keep": {}}


def swap_norms(model: nn.Module, policy: str = "group", *, dry_run: bool = False) -> SwapReport:
    """Replace the model's batch normalisation layers in place, and return what was found and done.

    Weight and bias stay the same Parameter objects, so their values, dtype, device and ``requires_grad`` do too, and
    an optimizer or a tied layer that holds them still does. Running statistics are lost: a pretrained network has to
    be fine-tuned afterwards. A layer that stands in several places is replaced once and still shared.

    Args:
        model: any module that contains such layers; itself must not be one.
        policy: ``"group"`` for GroupNorm; ``"keep"`` changes nothing and only reports.
        dry_run: whether only to report what would be done.

    Raises:
        ConfigError: for an unknown policy, and for a layer that cannot be replaced without losing something: one that
            is the model itself, is lazy and not yet initialised, or has hooks or a parametrization.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 72, 3), nn.BatchNorm2d(72), nn.ReLU())
        >>> swap_norms(model).summary
        'norms, policy group: 1 x BatchNorm2d -> GroupNorm'
        >>> model[1].num_groups, model[1].num_channels
        (8, 72)
    """
    if policy not in _RULES:
        raise expected(f"one of {', '.join(_RULES)}", policy, "swap_norms(policy=...)")
    places = _find_norms(model, policy)
    replacements: dict[nn.Module, nn.Module | str] = {}
    for norm, names in places.items():  # all are made before the first is put in place: an error changes nothing
        replacements[norm] = "policy keep" if policy == "keep" else _make_replacement(norm, names[0], policy)
    for norm, names in places.items():
        replacement = replacements[norm]
        if isinstance(replacement, nn.Module) and not dry_run:
            _put_in_place(model, names, replacement)
    return SwapReport(policy, tuple(_tell(norm, names, replacements[norm]) for norm, names in places.items()))


def register_norm(kind: type[nn.Module], policy: str = "group") -> Callable[[Rule], Rule]:
    """Return a decorator: the function makes the replacement of layers of this class and of its subclasses.

    The function gets a layer and returns another module, or a text that says why the layer must be kept. The rule of
    the nearest base class decides.

    Args:
        kind: the class of layers, which have ``num_features``, ``num_channels`` or neither.
        policy: the policy of :func:`swap_norms` that it belongs to.

    Example:
        >>> class MyNorm(nn.BatchNorm2d): ...
        >>> @register_norm(MyNorm)
        ... def keep_mine(norm: nn.Module) -> nn.Module | str:
        ...     return "a norm of my own"
        >>> swap_norms(nn.Sequential(MyNorm(4))).kept[0].reason
        'a norm of my own'
    """

    def register(rule: Rule) -> Rule:
        _RULES.setdefault(policy, {})[kind] = rule
        return rule

    return register


def count_groups(num_channels: int) -> int:
    """Return the groups for so many channels: at most 32, of equal size, of at least two channels where possible.

    The greatest common divisor of the channels and 32, halved where it would leave one channel a group: such groups
    normalise each channel of a 1 x 1 map to exactly 0.

    Example:
        >>> [count_groups(num_channels) for num_channels in (256, 72, 32, 7, 1)]
        [32, 8, 16, 1, 1]
    """
    num_groups = math.gcd(MOST_GROUPS, num_channels)
    return num_groups // 2 if num_groups == num_channels > 1 else num_groups


class GroupNormAct(nn.GroupNorm):
    """GroupNorm with the dropout and the activation that the replaced layer had, under the same names.

    Example:
        >>> GroupNormAct(4, 8, drop=nn.Identity(), act=nn.ReLU()).act
        ReLU()
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        *,
        affine: bool = True,
        drop: nn.Module,
        act: nn.Module,
    ) -> None:
        super().__init__(num_groups, num_channels, eps, affine)
        self.drop = drop
        self.act = act

    def forward(self, input: Tensor) -> Tensor:
        """Return the input normalised, dropped out, and activated."""
        return self.act(self.drop(super().forward(input)))  # type: ignore[no-any-return]


# ------------------------------------------------------------------ policy group


@register_norm(nn.BatchNorm1d)
@register_norm(nn.BatchNorm2d)
@register_norm(nn.BatchNorm3d)
@register_norm(nn.SyncBatchNorm)
def _make_group_norm(norm: nn.Module) -> nn.Module | str:
    assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm)
    # (samples, channels) has one value a channel, and two values a group would come out as -1 and 1: so one group
    num_groups = 1 if isinstance(norm, nn.BatchNorm1d) else count_groups(norm.num_features)
    if isinstance(norm, nn.BatchNorm1d) and norm.num_features == 1:
        return "one channel: normalised by itself it would be constant"
    made: nn.GroupNorm
    drop, act = getattr(norm, "drop", None), getattr(norm, "act", None)
    if isinstance(drop, nn.Module) and isinstance(act, nn.Module):  # as timm's BatchNormAct2d has them
        made = GroupNormAct(num_groups, norm.num_features, norm.eps, affine=False, drop=drop, act=act)
    elif type(norm).forward not in _PLAIN_FORWARDS:
        return f"{type(norm).__name__} has a forward of its own: register_norm tells what replaces it"
    else:
        made = nn.GroupNorm(num_groups, norm.num_features, norm.eps, affine=False)
    made.affine = norm.affine
    made.register_parameter("weight", norm.weight)
    made.register_parameter("bias", norm.bias)
    made.training = norm.training
    return made


_PLAIN_FORWARDS: Final = (nn.BatchNorm2d.forward, nn.SyncBatchNorm.forward)  # 1d, 2d and 3d inherit one


# ------------------------------------------------------------------ finding and placing


def _find_norms(model: nn.Module, policy: str) -> dict[nn.Module, list[str]]:
    """Return every layer that there is a rule for, with all names under which it stands."""
    kinds: tuple[type[nn.Module], ...] = (*_LAZY, *_RULES["group" if policy == "keep" else policy])
    places: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, kinds):
            places.setdefault(module, []).append(name)
    return places


def _make_replacement(norm: nn.Module, name: str, policy: str) -> nn.Module | str:
    where = f"layer {name!r}"
    if not name:
        raise expected("a model that contains normalisation layers", norm, "swap_norms(model)", "Wrap it in a module.")
    if isinstance(norm, _LAZY):
        raise expected("an initialised layer", norm, where, "Pass one batch through the model before the swap.")
    if any(getattr(norm, hooks) for hooks in _HOOKS) or hasattr(norm, "parametrizations"):
        raise ConfigError(
            f"expected layers without hooks and parametrizations, but got {norm!r} with one (in {where}), which the "
            "swap would lose. Add it after the swap."
        )
    rule = next(_RULES[policy][kind] for kind in type(norm).__mro__ if kind in _RULES[policy])
    return rule(norm)


def _put_in_place(model: nn.Module, names: list[str], replacement: nn.Module) -> None:
    for name in names:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, replacement)


def _tell(norm: nn.Module, names: list[str], replacement: nn.Module | str) -> Finding:
    num_channels = int(getattr(norm, "num_features", getattr(norm, "num_channels", 0)))
    kind = type(norm).__name__
    if isinstance(replacement, str):
        return Finding(tuple(names), kind, num_channels, None, replacement)
    now, reason = type(replacement).__name__, "a rule of its own"
    if isinstance(replacement, nn.GroupNorm):
        now += f"({replacement.num_groups} groups of {num_channels // replacement.num_groups})"
        reason = "statistics of each sample alone"
    return Finding(tuple(names), kind, num_channels, now, reason)
