"""A user's outputs of which some are masked: infinite ones accuse nobody, and large ones hide
nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gnnhpc.engines.stage import Stage
from gnnhpc.tasks.task import Loss
from tests.defects.patching import around
from tests.tools.own_models import add_folder, checked, invalid

pytestmark = pytest.mark.distributed

MODEL = """
import math
import torch
from torch import nn
from gnnhpc import Layer, Model


class Centred(Model):
    takes = ("graph",)

    def outline(self, facts):
        return [Layer("in", (facts.features,), (8,)), Layer("out", (8,), (facts.classes,))]

    def build(self, layer, options):
        return Linear(layer).to(options.dtype)


class Linear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.lin, self.is_last = nn.Linear(layer.inputs[0], layer.shape[0]), layer.name == "out"

    def forward(self, x, context):
        x = self.lin(x.to_dense() if hasattr(x, "to_dense") else x)
        if self.is_last:
            x = torch.cat([x[:, :-1], torch.full_like(x[:, -1:], FILL)], 1)
        return x
"""
CLASSES, NODES = 4, 120


def write_graph(path: Path) -> None:
    """Of whose classes the last has no node."""
    draw = np.random.default_rng(0)
    edges = draw.integers(0, NODES, (2, 400))
    edges = np.unique(np.concatenate([edges, edges[::-1]], 1), axis=1)
    number = np.arange(NODES)
    np.savez(
        path,
        edge_index=edges[:, edges[0] != edges[1]],
        x=draw.standard_normal((NODES, 16)).astype(np.float32),
        y=draw.integers(0, CLASSES - 1, NODES),
        train_mask=number < 50,
        val_mask=(number >= 50) & (number < 75),
        test_mask=number >= 75,
    )


def evaluated_wrongly(folder: Path) -> None:
    """Other classes' numbers, halved, in all rows."""
    add_folder(folder)

    def forward(true: Callable[..., Tensor], stage: Stage, *args: Any) -> Tensor:
        out = true(stage, *args)
        if stage.training or stage.outlines[-1].name != "out":
            return out
        return torch.cat([out[:, :-1].roll(1, 1) * 0.5, out[:, -1:]], 1)

    around(Stage, "forward", forward)


def told_a_tenth_less(folder: Path) -> None:
    """The loss that a step reports and goes backward from."""
    add_folder(folder)
    around(Loss, "__call__", lambda true, *args: true(*args) * 0.9)


@pytest.mark.quick("sound-infinite", "outputs-large", "loss-least")
@pytest.mark.parametrize(
    "fill", ["-math.inf", "-1e9", "torch.finfo(x.dtype).min"], ids=["infinite", "large", "least"]
)
@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (None, set()),
        (evaluated_wrongly, {"final-check"}),
        (told_a_tenth_less, {"loss gradient"}),
    ],
    ids=["sound", "outputs", "loss"],
)
def test_what_is_masked(
    fill: str, plant: Callable[[Path], None] | None, found: set[str], tmp_path: Path
) -> None:
    graph = tmp_path / "graph.npz"
    write_graph(graph)
    data = ["--data", "file", "--set", f"data.path={graph}", "--set", f"data.classes={CLASSES}"]
    flags = ["--set", "train_steps=6", "--layout", "pp2"]
    text = MODEL.replace("FILL", fill)
    checks = checked(tmp_path, text, *flags, data=data, ranks=2, plant=plant)
    told = invalid(checks)
    assert found <= set(told)
    assert bool(told) == bool(found), [checks[name].detail for name in told]
