"""LightningCLI builds the callback and its schedule from YAML, and trains with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.cli import LightningCLI

from tests.harness import FLOAT32, Scalar, make_loader, singles


class CliModule(Scalar):
    """Harness H for the command line: arguments that jsonargparse can build."""

    gradients: list[float] = []

    def __init__(self, lr: float = 0.0) -> None:
        super().__init__(lr=lr)

    def train_dataloader(self) -> Any:
        return make_loader(singles(10))

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.gradients.append(self.w.grad.item())


YAML = """
trainer:
  accelerator: cpu
  devices: 1
  max_epochs: {epochs}
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
  callbacks:
    - class_path: lightning_accum.GradientAccumulation
      init_args:
"""

FOUR = [2.5, 6.5, 9.5]
ONES = [float(value) for value in range(1, 11)]


@pytest.mark.parametrize(
    ("arguments", "epochs", "expected"),
    [
        ("schedule: 4", 1, FOUR),
        ("schedule: '0:1,1:4'", 2, ONES + FOUR),
        ("schedule: {0: 1, 1: 4}", 2, ONES + FOUR),
        ("schedule: [[0, 1], [1, 4]]", 2, ONES + FOUR),
        ("schedule: '0 steps: 4, 2 steps: 1'", 1, [2.5, 6.5, 9, 10]),
        ("{epoch_end: drop, schedule: 4, divisor: planned, log: false}", 1, [2.5, 6.5]),
        ("{schedule: 6, unit: samples, weight: equal}", 1, [3.5, 8.5]),
        (
            "{schedule: {class_path: lightning_accum.LinearRamp, init_args: {start: 1, end: 4, over: 3 steps}}}",
            1,
            [1, 2.5, 5, 8.5],
        ),
        ("{schedule: {class_path: lightning_accum.PerEpoch, init_args: {values: {0: 4}}}}", 1, FOUR),
        ("{schedule: {class_path: lightning_accum.Constant, init_args: {value: 4}}}", 1, FOUR),
        ("{schedule: 4, weight: {class_path: lightning_accum.Samples}}", 1, FOUR),
        ("{}", 1, ONES),
    ],
)
def test_lightning_cli_builds_the_callback_from_yaml(
    tmp_path: Path, arguments: str, epochs: int, expected: list[float]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(YAML.format(epochs=epochs) + f"        {arguments}\n")
    CliModule.gradients = []
    LightningCLI(CliModule, args=["fit", "--config", str(config)], save_config_callback=None)
    assert CliModule.gradients == pytest.approx(expected, rel=FLOAT32)


def test_lightning_cli_overrides_a_schedule_on_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(YAML.format(epochs=1) + "        schedule: 2\n")
    CliModule.gradients = []
    args = ["fit", "--config", str(config), "--trainer.callbacks.schedule", "4"]
    LightningCLI(CliModule, args=args, save_config_callback=None)
    assert CliModule.gradients == pytest.approx(FOUR, rel=FLOAT32)
