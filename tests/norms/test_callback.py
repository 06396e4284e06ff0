"""The callback swaps before anybody else sees the model, also where only a checkpoint is loaded."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
from torch import nn

from lightning_accum import ConfigError
from lightning_accum.norms import NormSwap


class Model(BoringModel):
    def __init__(self) -> None:
        super().__init__()
        parts = nn.Linear(32, 8), nn.Unflatten(1, (4, 2)), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(8, 2)
        self.layer = nn.Sequential(*parts)


class OneChannel(BoringModel):
    def __init__(self) -> None:
        super().__init__()
        parts = nn.Linear(32, 8), nn.Unflatten(1, (1, 8)), nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(8, 2)
        self.layer = nn.Sequential(*parts)


def make_trainer(tmp_path, *callbacks, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    limits = {"max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 1, "limit_test_batches": 2}
    return pl.Trainer(
        accelerator="cpu", default_root_dir=tmp_path, callbacks=list(callbacks), **{**quiet, **limits, **options}
    )


def test_norm_swap_is_done_before_the_optimizer_is_made(tmp_path):
    model, swap = Model(), NormSwap()
    trainer = make_trainer(tmp_path, swap)
    trainer.fit(model)
    assert isinstance(model.layer[2], nn.GroupNorm)
    held = {id(parameter) for group in trainer.optimizers[0].param_groups for parameter in group["params"]}
    assert held >= {id(parameter) for parameter in model.parameters()}
    assert swap.report.num_swapped == 1


@pytest.mark.parametrize("method", ["validate", "test"])
def test_checkpoint_of_a_swapped_model_loads_into_a_fresh_one(tmp_path, method):
    trained = Model()
    trainer = make_trainer(tmp_path, NormSwap())
    trainer.fit(trained)
    trainer.save_checkpoint(tmp_path / "swapped.ckpt")
    fresh = Model()
    getattr(make_trainer(tmp_path, NormSwap()), method)(fresh, ckpt_path=tmp_path / "swapped.ckpt", verbose=False)
    torch.testing.assert_close(fresh.state_dict(), trained.state_dict())


def test_checkpoint_of_a_swapped_model_resumes_training(tmp_path):
    trainer = make_trainer(tmp_path, NormSwap())
    trainer.fit(Model())
    trainer.save_checkpoint(tmp_path / "swapped.ckpt")
    longer = make_trainer(tmp_path, NormSwap(), max_epochs=2)
    longer.fit(Model(), ckpt_path=tmp_path / "swapped.ckpt")
    assert longer.global_step == 2 * trainer.global_step


def test_trainer_used_again_for_its_own_model_swaps_nothing_more(tmp_path):
    model, swap = Model(), NormSwap()
    trainer = make_trainer(tmp_path, swap)
    trainer.fit(model)
    swapped = model.layer[2]
    trainer.test(model, verbose=False)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model)
    assert model.layer[2] is swapped
    assert swap.report.num_swapped == 1


def test_model_swapped_after_its_optimizer_was_made_is_an_error(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.fit(Model())
    trainer.callbacks.append(NormSwap())
    with pytest.raises(ConfigError, match="before its optimizers are made, but got \\['SGD'\\]"):
        trainer.test(Model(), verbose=False)


def test_kept_layer_is_warned_of_and_does_not_stop_a_second_use(tmp_path):
    model = OneChannel()
    trainer = make_trainer(tmp_path, NormSwap())
    with pytest.warns(UserWarning, match=r"layer\.2 \(BatchNorm1d\) was kept: one channel"):
        trainer.fit(model)
    trainer.test(model, verbose=False)
    assert isinstance(model.layer[2], nn.BatchNorm1d)


def test_policy_keep_changes_nothing_and_says_nothing(tmp_path, recwarn):
    model, swap = Model(), NormSwap("keep")
    make_trainer(tmp_path, swap).fit(model)
    assert isinstance(model.layer[2], nn.BatchNorm1d)
    assert not [warning for warning in recwarn if "was kept" in str(warning.message)]
    assert len(swap.report.kept) == 1


def test_unknown_policy_is_an_error_at_once():
    with pytest.raises(ConfigError, match="one of group, keep"):
        NormSwap("grupp")
