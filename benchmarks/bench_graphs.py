"""Seconds of a step of graph classification: ours, and PyG's and DGL's as their users write it.

    python -m benchmarks.bench_graphs [--model gin] [--hidden 32] [--batch 128] [--rounds 15]

Five convolutions, mean pooling and a linear layer (Xu et al. 2019), 32 wide in batches of 128 as in
PyG's own example of GIN, on 10,000 made-up threads of discussion, or on reddit10k under a data
root: putting the graphs of a mini-batch together, forward, backward and Adam, all in one process
without workers. PyG's DataLoader and DGL's GraphDataLoader shuffle, ours takes its own order. Each
contestant has a process of its own (`benchmarks.turns`).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.turns import Entry, compete, those_that_run
from gnnhpc.core.layout import Layout
from gnnhpc.data.load_graph_sets import load_graph_set
from gnnhpc.data.registry import DATA
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.training.setup import set_up

FORMS = {
    "ours": "ours",
    "dgl": "DGL's GraphDataLoader and layers",
    "pyg": "PyG's DataLoader and layers",
}
MODELS = ("gin", "gcn")
LAYERS, DROPOUT, RATE = 5, 0.5, 0.01
STEPS = 20
"""A turn: one step takes milliseconds."""
MADE = {"name": "synthetic-graphs", "graphs": 10_000}


@dataclass(frozen=True)
class Setting:
    model: str
    hidden: int = 32
    batch: int = 128
    root: str | None = None
    """Where reddit10k lies; None for made-up graphs."""

    @property
    def data(self) -> dict[str, Any]:
        return {"name": "reddit10k"} if self.root else MADE

    def graphs(self) -> GraphSet:
        folder = Path(self.root) if self.root else None
        return load_graph_set(DATA[self.data["name"]].model_validate(self.data), folder)

    def widths(self, graphs: GraphSet) -> list[int]:
        """Of what enters each convolution."""
        return [graphs.features.shape[1], *[self.hidden] * (LAYERS - 1)]

    def mlp(self, width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(width, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.hidden)
        )


def contestant(form: str, **setting: Any) -> Callable[[], float]:
    """Seconds a step, of as many steps a turn."""
    step = {"ours": _ours, "dgl": _dgl, "pyg": _pyg}[form](Setting(**setting))

    def turn() -> float:
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        return (time.perf_counter() - began) / STEPS

    return turn


def _ours(setting: Setting) -> Callable[[], None]:
    steps = 1_000_000
    model = {"name": setting.model, "layers": LAYERS, "hidden": setting.hidden, "dropout": DROPOUT}
    experiment = Experiment.model_validate(
        {
            "model": model,
            "data": setting.data,
            "batch_size": setting.batch,
            "train_steps": steps,
            "test_steps": 0,
            "optimizer": {"lr": RATE},
        }
    )
    folder = Path(setting.root) if setting.root else None
    parts = set_up(experiment, Mesh(Layout(), 0, torch.device("cpu")), folder)
    parts.stage.train()
    made = parts.batches.open("train", 0, steps)
    batches, optimizer = made.__enter__(), parts.optimizer
    assert optimizer is not None

    def step() -> None:
        # Kept alive with the step: the context ends the threads that make mini-batches.
        assert made is not None
        found = next(batches)
        optimizer.zero_grad(set_to_none=False)
        parts.engine.train_step(found)
        optimizer.step()

    return step


class _Convolutions(nn.Module):
    """The same network of a library's layers: `convolve(layer, graph, x)`, then `pool`."""

    def __init__(self, layers: list[nn.Module], hidden: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.linear = nn.Linear(hidden, classes)

    def forward(
        self, x: Tensor, convolve: Callable[..., Tensor], pool: Callable[[Tensor], Tensor]
    ) -> Tensor:
        for layer in self.layers:
            x = functional.relu(convolve(layer, x))
            x = functional.dropout(x, DROPOUT, self.training)
        return functional.log_softmax(self.linear(pool(x)), dim=-1)


def _pyg(setting: Setting) -> Callable[[], None]:
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GCNConv, GINConv, global_mean_pool

    graphs = setting.graphs()
    made = [
        Data(x=x, edge_index=edges, y=label.view(1), num_nodes=len(x))
        for x, edges, label in _one_by_one(graphs)
    ]
    loader = DataLoader(made, batch_size=setting.batch, shuffle=True)
    layers: list[nn.Module] = [
        GINConv(setting.mlp(width)) if setting.model == "gin" else GCNConv(width, setting.hidden)
        for width in setting.widths(graphs)
    ]
    network = _Convolutions(layers, setting.hidden, graphs.classes)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def outputs(found: Any) -> tuple[Tensor, Tensor]:
        def pool(x: Tensor) -> Tensor:
            pooled: Tensor = global_mean_pool(x, found.batch, found.num_graphs)
            return pooled

        return network(found.x, lambda layer, x: layer(x, found.edge_index), pool), found.y

    return _step(network, batches, outputs)


def _dgl(setting: Setting) -> Callable[[], None]:
    from gnnhpc.models.dgl_import import import_dgl

    dgl = import_dgl()
    from dgl.dataloading import GraphDataLoader
    from dgl.nn.pytorch import AvgPooling, GINConv, GraphConv

    graphs = setting.graphs()
    made = []
    for x, (source, target), label in _one_by_one(graphs):
        graph = dgl.graph((source, target), num_nodes=len(x))
        # DGL's GCN counts no node among its own neighbours unless it has an edge to itself.
        graph = dgl.add_self_loop(graph) if setting.model == "gcn" else graph
        graph.ndata["x"] = x
        made.append((graph, label))
    loader = GraphDataLoader(made, batch_size=setting.batch, shuffle=True)
    layers: list[nn.Module] = [
        GINConv(setting.mlp(width), "sum")
        if setting.model == "gin"
        else GraphConv(width, setting.hidden)
        for width in setting.widths(graphs)
    ]
    network, pooling = _Convolutions(layers, setting.hidden, graphs.classes), AvgPooling()
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def outputs(found: Any) -> tuple[Tensor, Tensor]:
        graph, labels = found
        pooled = network(
            graph.ndata["x"], lambda layer, x: layer(graph, x), lambda x: pooling(graph, x)
        )
        return pooled, labels

    return _step(network, batches, outputs)


def _step(
    network: nn.Module,
    batches: Iterator[Any],
    outputs: Callable[[Any], tuple[Tensor, Tensor]],
) -> Callable[[], None]:
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    network.train()

    def step() -> None:
        scores, labels = outputs(next(batches))
        loss = functional.nll_loss(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def _one_by_one(graphs: GraphSet) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each graph to train on: dense features, its own numbers of edges' ends, its label."""
    x, first = graphs.features.to_dense(), graphs.first
    bounds = torch.searchsorted(graphs.edges[1].contiguous(), first)
    for number in graphs.numbers("train").tolist():
        begin, end = int(first[number]), int(first[number + 1])
        edges = graphs.edges[:, int(bounds[number]) : int(bounds[number + 1])] - begin
        yield x[begin:end].clone(), edges.contiguous(), graphs.labels[number]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="gin")
    parser.add_argument("--hidden", type=int, default=32, help="width of the convolutions")
    parser.add_argument("--batch", type=int, default=128, help="graphs of a mini-batch")
    parser.add_argument("--rounds", type=int, default=15, help=f"turns timed, of {STEPS} steps")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contestant")
    parser.add_argument("--data-root", help="take reddit10k from here")
    given = parser.parse_args()
    settings = {"model": given.model, "hidden": given.hidden, "batch": given.batch}
    settings |= {"root": given.data_root}
    entries = {
        form: Entry("benchmarks.bench_graphs:contestant", {"form": form} | settings)
        for form in FORMS
    }
    entries = those_that_run(entries, given.threads)
    seconds = compete(entries, given.rounds, given.threads, warmup=2)
    for form, values in seconds.items():
        ratios = sorted(v / o for v, o in zip(values, seconds["ours"], strict=True))
        print(
            f"{form:5} median {1e3 * statistics.median(values):6.2f} ms a step"
            f"  ({1e3 * min(values):.2f} to {1e3 * max(values):.2f}), ours"
            f" {statistics.median(ratios):5.2f} times as fast"
            f" ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
