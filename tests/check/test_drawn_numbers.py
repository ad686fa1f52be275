"""A user's layers draw from the generators, and nothing else puts these anywhere."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.sequential import SequentialEngine
from gnnhpc.engines.stage import Stage
from gnnhpc.kernels import sample
from gnnhpc.models.context import Context
from gnnhpc.models.generators import generators_put_back
from gnnhpc.train.loop import Trainer
from tests.defects.patching import around
from tests.tools.dgl import needs_dgl
from tests.tools.own_models import (
    DROPPING,
    MODEL,
    add_folder,
    checked,
    invalid,
)
from tests.tools.pyg_sampler import needs_pyg_sampler

pytestmark = pytest.mark.distributed


def around_steps(step: Callable[..., Any]) -> None:
    around(SequentialEngine, "train_step", step)
    around(NativeEngine, "train_step", step)


def generators_set_before_each_step(folder: Path) -> None:
    add_folder(folder)

    def step(true: Callable[..., Any], *args: Any) -> Any:
        torch.manual_seed(3)
        return true(*args)

    around_steps(step)


def generators_put_back_after_forwards(folder: Path) -> None:
    add_folder(folder)

    def forward(true: Callable[..., Any], stage: Stage, *args: Any) -> Any:
        with generators_put_back() if stage.training else contextlib.nullcontext():
            return true(stage, *args)

    around(Stage, "forward", forward)


def generators_set_after_each_step(folder: Path) -> None:
    add_folder(folder)

    def step(true: Callable[..., Any], *args: Any) -> Any:
        output = true(*args)
        torch.manual_seed(3)
        return output

    around_steps(step)


SELF_SEEDING = MODEL.replace(
    "return x - x.mean(0)",
    "torch.manual_seed(SEED); return nn.functional.dropout(x, 0.3, self.training)",
)


@pytest.mark.quick("step-seq")
@pytest.mark.parametrize("layout", ["seq", "pp2"])
@pytest.mark.parametrize(
    "seed",
    ["42", "context.microbatch", "context.step", "context.step % 2"],
    ids=["one", "micro-batch", "step", "every second step"],
)
def test_layers_may_set_generators_between_evaluations(
    seed: str, layout: str, tmp_path: Path
) -> None:
    flags = ["--layout", layout, "--set", "train_steps=6", "--set", "test_every=2"]
    text = SELF_SEEDING.replace("SEED", seed)
    assert invalid(checked(tmp_path, text, *flags, ranks=1 + (layout == "pp2"))) == []


def generators_set_after_evaluations(folder: Path) -> None:
    add_folder(folder)

    def evaluate(true: Callable[..., Any], *args: Any) -> Any:
        evaluated = true(*args)
        random.seed(7)
        return evaluated

    around(Trainer, "_evaluate", evaluate)


def all_generators_put_back_after_forwards(folder: Path) -> None:
    add_folder(folder)

    def forward(true: Callable[..., Any], stage: Stage, x: Any, context: Context) -> Any:
        held = random.getstate(), np.random.get_state()
        output = true(stage, x, context)
        if stage.training:
            random.setstate(held[0])
            np.random.set_state(held[1])
        return output

    around(Stage, "forward", forward)


@pytest.mark.quick("put back-numpy")
@pytest.mark.parametrize(
    "draws", ["random.random()", "np.random.random()"], ids=["python", "numpy"]
)
@pytest.mark.parametrize(
    "plant",
    [None, generators_set_after_evaluations, all_generators_put_back_after_forwards],
    ids=["sound", "after evaluations", "put back"],
)
def test_layers_alone_draw_from_the_others(
    plant: Callable[[Path], None] | None, draws: str, tmp_path: Path
) -> None:
    """Python's and numpy's generators."""
    text = MODEL.replace("return x - x.mean(0)", f"return x * {draws} if self.training else x")
    text = f"import random\nimport numpy as np\n{text}"
    flags = ["--set", "train_steps=6", "--set", "test_every=2"]
    checks = checked(tmp_path, text, *flags, plant=plant)
    assert invalid(checks) == (["generators"] if plant else [])


@pytest.mark.quick("put back-seq", "sound-pp2")
@pytest.mark.parametrize("layout", ["seq", "pp2"])
@pytest.mark.parametrize(
    "plant",
    [
        None,
        generators_set_before_each_step,
        generators_set_after_each_step,
        generators_put_back_after_forwards,
    ],
    ids=["sound", "before", "after", "put back"],
)
def test_layers_alone_draw_from_the_generators(
    plant: Callable[[Path], None] | None, layout: str, tmp_path: Path
) -> None:
    """Each step, or micro-batch, would drop the same otherwise."""
    flags = ["--layout", layout, "--set", "train_steps=4", "--set", "test_every=2"]
    ranks = 1 + (layout == "pp2")
    checks = checked(tmp_path, DROPPING, *flags, ranks=ranks, plant=plant)
    assert invalid(checks) == (["generators"] if plant else [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "checkpoint"),
    [
        ("native", "never"),
        ("native", "always"),
        ("torchgpipe", "never"),
        ("torchgpipe", "always"),
        ("pipelining", "never"),
    ],
)
def test_layers_may_draw_in_any_engine(engine: str, checkpoint: str, tmp_path: Path) -> None:
    """Also by numbers that they set themselves."""
    text = DROPPING.replace(
        "return self.lin(x)", "torch.manual_seed(7); return self.lin(x + torch.randn_like(x))"
    )
    assert text != DROPPING
    flags = ["--layout", "pp2", "--set", f"engine={engine}", "--set", f"checkpoint={checkpoint}"]
    ranks = 1 + (engine != "torchgpipe")
    checks = checked(tmp_path, text, *flags, "--set", "train_steps=4", ranks=ranks)
    assert invalid(checks) == []


SAMPLED = """
import torch
from torch import nn
from gnnhpc import Layer, Model


class Centred(Model):
    takes = ("graph",)

    def outline(self, facts):
        widths = [facts.features, 16, facts.classes]
        return [
            Layer(f"hop{n}", (widths[n],), (widths[n + 1],), rows="hop", number=n) for n in (0, 1)
        ]

    def build(self, layer, options):
        return Hop(layer).to(options.dtype)


class Hop(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.lin, self.number = nn.Linear(layer.inputs[0], layer.shape[0]), layer.number

    def forward(self, x, context):
        x = x.to_dense() if hasattr(x, "to_dense") else x
        block = context.chunk.blocks[self.number]
        y = self.lin(nn.functional.dropout(x, 0.5, self.training))
        source, target = block.edge_index
        inside = target < block.rows_out
        return y[: block.rows_out].index_add(0, target[inside], y[source[inside]])
"""
NODES = ["--data", "synthetic-citation", "--set", "data.nodes=150", "--set", "data.edges=1500"]
NODES += ["--set", "data.features=12", "--set", "batch_size=24"]


@pytest.mark.quick("put back-ours")
@pytest.mark.parametrize("sampler", ["ours", "pyg", "dgl"])
@pytest.mark.parametrize(
    "plant",
    [None, generators_set_before_each_step, generators_put_back_after_forwards],
    ids=["sound", "before", "put back"],
)
def test_layers_alone_draw_on_sampled_nodes(
    plant: Callable[[Path], None] | None, sampler: str, tmp_path: Path
) -> None:
    """But for libraries' samplers, which draw from the same generators."""
    if sampler == "dgl":
        needs_dgl()
    if sampler == "pyg":
        needs_pyg_sampler()
    if sampler == "ours" and not sample.is_here():
        pytest.skip("needs a C++ compiler, as g++")
    flags = ["--set", f"sampling={{fanouts: [4, 3], sampler: {sampler}}}", "--set", "test_every=2"]
    checks = checked(tmp_path, SAMPLED, *flags, "--set", "train_steps=4", data=NODES, plant=plant)
    assert invalid(checks) == (["generators"] if plant else [])
