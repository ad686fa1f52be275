"""Runs of a user's own models, and what the audit says of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import Check
from tests.tools.forked import started

MODEL = """
import torch
from torch import nn
from gnnhpc import Layer, Model


class Centred(Model):
    takes = ("images", "graphs")

    def outline(self, facts):
        if facts.kind == "images":
            shape = (facts.image_size**2, facts.features)
            first = Layer("flat", shape, (shape[0] * shape[1],))
        else:
            first = Layer("pool", (facts.features,), (facts.features,), rows="pool")
        width = first.shape[0]
        return [
            first,
            Layer("centre", (width,), (width,)),
            Layer("out", (width,), (facts.classes,)),
        ]

    def build(self, layer, options):
        kind = {"flat": Flat, "pool": Pool, "centre": Centre}.get(layer.name)
        if kind is None:
            kind = lambda: Out(layer.inputs[0], layer.shape[0])
        return kind().to(options.dtype)


class Flat(nn.Module):
    def forward(self, x, context):
        return x.flatten(1)


class Pool(nn.Module):
    def forward(self, x, context):
        block = context.chunk.pooling_block
        ends = block.indptr.diff()
        of = torch.repeat_interleave(torch.arange(len(ends)), ends)
        return x.new_zeros(len(ends), x.shape[1]).index_add(0, of, x[block.source])


class Centre(nn.Module):
    def forward(self, x, context):
        return x - x.mean(0)


class Out(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.lin = nn.Linear(inputs, outputs)

    def forward(self, x, context):
        return self.lin(x)
"""
DROPPING = MODEL.replace(
    "return x - x.mean(0)", "return nn.functional.dropout(x, 0.3, self.training)"
).replace(
    "class Flat(nn.Module):",
    """class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(self.drop)

    def drop(self, _module, given):
        return nn.functional.dropout(given[0], 0.1, self.training), *given[1:]
""",
)

IMAGES = ["--data", "synthetic-cifar10", "--set", "data.train=96", "--set", "data.test=32"]
IMAGES += ["--set", "data.image_size=8", "--set", "batch_size=32"]
GRAPHS = ["--data", "synthetic-graphs", "--set", "data.graphs=400", "--set", "batch_size=16"]


def checked(
    folder: Path,
    text: str,
    *flags: str,
    data: list[str] = IMAGES,
    ranks: int = 1,
    plant: Callable[[Path], None] | None = None,
) -> dict[str, Check]:
    """What the audit of a run of this model says, in two micro-batches."""
    folder.mkdir(exist_ok=True)
    (folder / "centred.py").write_text(text)
    out = folder / "out"
    command = ["run", "--model", "centred:Centred", *data, "--microbatches", "2", "--out", out]
    command += ["--set", "test_steps=1", *flags]
    with started(command, ranks, folder, plant=partial(plant or add_folder, folder)) as running:
        assert set(running.wait()) == {0}, running.err(0)
    (path,) = out.glob("cells/*/*/result.json")
    return {check.name: check for check in Result.read(path).audit}


def invalid(checks: dict[str, Check]) -> list[str]:
    return [name for name, check in checks.items() if check.verdict == "invalid"]


NORMALIZING = (
    MODEL.replace(
        """            Layer("centre", (width,), (width,)),
            Layer("out", (width,), (facts.classes,)),""",
        """            Layer("narrow", (width,), (16,)),
            Layer("centre", (16,), (16,)),
            Layer("centre2", (16,), (16,)),
            Layer("out", (16,), (facts.classes,)),""",
    )
    .replace(
        "        return x - x.mean(0)",
        """        return self.norm(self.lin(x).tanh())

    def __init__(self):
        super().__init__()
        self.lin, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)""",
    )
    .replace('"centre": Centre}', '"centre": Centre, "centre2": Centre}')
)


def computing(computes: str, keeps: str) -> str:
    """Layers of sixteen units that compute so, and keep this beside a linear layer."""
    built = f"self.lin = nn.Linear(16, 16)\n        {keeps}"
    return NORMALIZING.replace("return self.norm(self.lin(x).tanh())", computes).replace(
        "self.lin, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)", built
    )


def add_folder(folder: Path) -> None:
    sys.path.insert(0, str(folder))
