"""A user's layers that are well in one process and not as the first of a stage: named, and why."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from gnnhpc.records.result_file import Result
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


SETTINGS = ("data.train=64", "data.test=32", "data.image_size=8", "batch_size=16", "train_steps=4")


def command_of(folder: Path, active: str, *settings: str) -> list[str]:
    (folder / "mistaken.py").write_text(MODEL.replace("ACTIVE", active))
    command = ["run", "--model", "mistaken:Mistaken", "--data", "synthetic-cifar10"]
    command += ["--microbatches", "2", "--out", str(folder / "out")]
    return [*command, *(word for each in (*SETTINGS, *settings) for word in ("--set", each))]


@pytest.mark.parametrize(
    ("active", "others"),
    [
        ("torch.relu_(x)", ()),
        ("torch.relu_(x)", ("schedule=1f1b", "activation_checkpointing=always")),
        ("x.detach().relu()", ("schedule=zero-bubble",)),
    ],
)
def test_the_layer_is_named(active: str, others: tuple[str, ...], tmp_path: Path) -> None:
    command = [*command_of(tmp_path, active, "balance=[2,2]", *others), "--layout", "pp2"]
    with started(command, 2, tmp_path, plant=partial(add_folder, tmp_path)) as running:
        assert set(running.wait()) == {1}
        assert any(MISTAKES[active] in running.err(rank) for rank in (0, 1))


@pytest.mark.parametrize("balance", [None, "[1,3]"])
def test_a_change_in_place_within_a_stage_is_well(balance: str | None, tmp_path: Path) -> None:
    more = [] if balance is None else ["--layout", "pp2", "--set", f"balance={balance}"]
    command = [*command_of(tmp_path, "torch.relu_(x)"), *more]
    with started(command, 2 if more else 1, tmp_path, plant=partial(add_folder, tmp_path)) as ranks:
        assert set(ranks.wait()) == {0}, ranks.err(0)
    (path,) = (tmp_path / "out").glob("cells/*/*/result.json")
    assert "invalid" not in [check.verdict for check in Result.read(path).audit]
