"""Custom models for tests, as users write them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

GRAPH = """
import torch
from torch import nn
from gnnhpc import Layer, Model
from gnnhpc.models.layers.dropout_layer import Dropout


class Net(Model):
    takes = ("graph",)
    hidden: int = 8

    def outline(self, facts):
        return [
            Layer("conv0", (facts.features,), (self.hidden,), kind="conv", rows="hop", number=0),
            Layer("middle", (self.hidden,), (self.hidden,), kind="middle"),
            Layer("conv1", (self.hidden,), (facts.classes,), kind="conv", rows="hop", number=1),
        ]

    def build(self, layer, options):
        if layer.kind == "middle":
            return Middle(layer).to(options.dtype)
        return Conv(layer).to(options.dtype)


class Middle(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.drop = Dropout(layer.name, 0.3)

    def forward(self, x, context):
        return self.drop(x.relu(), context)


class Conv(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.number = layer.number
        self.own = nn.Linear(layer.inputs[0], layer.shape[0])
        self.around = nn.Linear(layer.inputs[0], layer.shape[0], bias=False)

    def forward(self, x, context):
        x = x if isinstance(x, torch.Tensor) else x.to_dense()
        block = context.chunk.blocks[self.number]
        source, target = block.neighbours
        summed = x.new_zeros(block.rows_out, x.shape[1]).index_add(0, target, x[source])
        return self.own(x[: block.rows_out]) + self.around(summed)
"""

IMAGES = """
import torch
from torch import nn
from gnnhpc import Layer, Model


class Net(Model):
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
            Layer("narrow", (width,), (16,)),
            Layer("middle", (16,), (16,)),
            Layer("out", (16,), (facts.classes,)),
        ]

    def build(self, layer, options):
        if layer.name in ("flat", "pool"):
            return Flat() if layer.name == "flat" else Pool()
        kind = Middle if layer.name == "middle" else Out
        return kind(layer.inputs[0], layer.shape[0]).to(options.dtype)


class Flat(nn.Module):
    def forward(self, x, context):
        return x.flatten(1)


class Pool(nn.Module):
    def forward(self, x, context):
        block = context.chunk.pooling_block
        counts = block.indptr.diff()
        graph = torch.repeat_interleave(torch.arange(len(counts)), counts)
        return x.new_zeros(len(counts), x.shape[1]).index_add(0, graph, x[block.source])


class Out(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.lin = nn.Linear(inputs, outputs)

    def forward(self, x, context):
        return self.lin(x)


class Middle(Out):
    def forward(self, x, context):
        return self.lin(x).tanh()
"""


def write_model(folder: Path, text: str, *changes: tuple[str, str]) -> dict[str, Any]:
    """Write a model with some text replaced; the model's part of an experiment."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net.py").write_text(text)
    return {"name": "net:Net"}


def add_folder(folder: Path) -> None:
    """Let a rank import what lies in this folder."""
    sys.path.insert(0, str(folder))
