"""A user's layers that are well in one process and not as the first of a stage: named, and why."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.tools.forked import started

pytestmark = pytest.mark.distributed

MODEL = """
import torch
from torch import nn
from gnnhpc import Layer, Model


class Mistaken(Model):
    takes = ("images",)

    def outline(self, facts):
        width = facts.image_size**2 * facts.features
        return [
            Layer("flat", (facts.image_size**2, facts.features), (width,)),
            Layer("hidden", (width,), (16,)),
            Layer("active", (16,), (16,)),
            Layer("out", (16,), (facts.classes,)),
        ]

    def build(self, layer, options):
        kinds = {"flat": Flat, "active": Active}
        made = kinds[layer.name]() if layer.name in kinds else Linear(layer)
        return made.to(options.dtype)


class Flat(nn.Module):
    def forward(self, x, context):
        return x.flatten(1)


class Linear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.lin = nn.Linear(*layer.inputs, *layer.shape)

    def forward(self, x, context):
        return self.lin(x)


class Active(nn.Module):
    def forward(self, x, context):
        return ACTIVE
"""
MISTAKES = {
    "torch.relu_(x)": "layer active changes its input in place",
    "x.detach().relu()": "no gradient goes from layer active to the stage before",
}


def add_folder(folder: Path) -> None:
    sys.path.insert(0, str(folder))


@pytest.mark.parametrize("schedule", ["gpipe", "zero-bubble"])
@pytest.mark.parametrize("active", MISTAKES)
def test_the_layer_is_named(active: str, schedule: str, tmp_path: Path) -> None:
    (tmp_path / "mistaken.py").write_text(MODEL.replace("ACTIVE", active))
    out = tmp_path / "out"
    command = ["run", "--model", "mistaken:Mistaken", "--data", "synthetic-cifar10"]
    for setting in ("data.train=64", "data.test=32", "data.image_size=8", "batch_size=16"):
        command += ["--set", setting]
    command += ["--set", "balance=[2,2]", "--set", f"schedule={schedule}", "--layout", "pp2"]
    command += ["--microbatches", "2", "--set", "train_steps=4", "--out", str(out)]
    with started(command, 2, tmp_path, plant=partial(add_folder, tmp_path)) as running:
        assert set(running.wait()) == {1}
        assert any(MISTAKES[active] in running.err(rank) for rank in (0, 1))
