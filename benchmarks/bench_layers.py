"""A training epoch of two convolutions, 256 wide, on 10^5 nodes: ours, PyG's, DGL's.

    python -m benchmarks.bench_layers gcn [--rounds 7] [--threads 2]

A graph of 10^6 edges, 100 dense features a node and 40 classes. Each contestant has a process of
its own (`benchmarks.turns`); each round times one epoch of every one in turn: zero gradients,
forward, loss, backward, Adam, dropout 0.5 after the first ReLU. The libraries' programs are as
their own examples write them: layers over the whole graph, with torch's dropout; PyG gets its edges
as `edge_index` and, where torch-sparse can be imported, as `adj_t`, and keeps GCN's weights
(`cached=True`). DGL has no GraphConv of Morris et al.; its own message passing stands in.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.bench_gat import Epoch, epoch_of
from benchmarks.isolated import peak_mib
from benchmarks.turns import Entry, compete, those_that_run
from gnnhpc.core.facts import Facts
from gnnhpc.graphs.chunks import build_chunks
from gnnhpc.graphs.features import feature_rows
from gnnhpc.graphs.graph import Graph
from gnnhpc.models.context import Context
from gnnhpc.models.libraries import import_dgl
from gnnhpc.models.model import BuildOptions
from gnnhpc.models.model_registry import model_class

NODES, EDGES, FEATURES, HIDDEN, CLASSES = 100_000, 1_000_000, 100, 256, 40
DROPOUT = 0.5
Form = Literal["fused", "edge_index", "adj_t", "dgl"]
FORMS: dict[Form, str] = {
    "fused": "fused",
    "edge_index": "PyG, edge_index",
    "adj_t": "PyG, adj_t",
    "dgl": "DGL",
}
KINDS = ("gcn", "sage", "graphconv", "gin")
Convolution = Callable[[Tensor], Tensor]


def large_graph() -> Graph:
    """Random edges both ways, without duplicates and self-loops."""
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(NODES, (2, EDGES // 2), generator=draw)
    ends = ends[:, ends[0] != ends[1]]
    keys = torch.cat((ends[1] * NODES + ends[0], ends[0] * NODES + ends[1])).unique()
    return Graph(
        "large",
        torch.randn(NODES, FEATURES, generator=draw),
        torch.randint(CLASSES, (NODES,), generator=draw),
        torch.stack((keys % NODES, keys // NODES)),
        {"train": torch.ones(NODES, dtype=torch.bool)},
        CLASSES,
    )


def ours(graph: Graph, kind: str) -> Epoch:
    """This project's layers on the whole graph."""
    chosen = model_class(kind)
    assert chosen is not None
    model: Any = chosen.model_validate({"name": kind, "hidden": HIDDEN, "dropout": DROPOUT})
    torch.manual_seed(0)
    facts = Facts("graph", FEATURES, CLASSES, nodes=NODES, edges=graph.edges.shape[1])
    options = BuildOptions(torch.float32)
    layers = nn.ModuleList(model.build(layer, options) for layer in model.outline(facts))
    (chunk,) = build_chunks(graph, 1, "contiguous", model.layers).chunks
    features = feature_rows(graph.features, chunk.nodes, torch.float32)
    steps = itertools.count()

    def loss_and_backward() -> Tensor:
        x, step = features, next(steps)
        for layer in layers:
            x = layer(x, Context(0, step, graph=chunk))
        loss = functional.nll_loss(x, chunk.targets["train"])
        loss.backward()
        return loss

    return epoch_of(layers, loss_and_backward)


def theirs(graph: Graph, first: nn.Module, second: nn.Module, call: Any) -> Epoch:
    """A library's two layers; `call(layer, x)` gives a layer what else it takes."""
    model = nn.ModuleList((first, second))

    def loss_and_backward() -> Tensor:
        x = functional.dropout(functional.relu(call(first, graph.features)), DROPOUT)
        loss = functional.nll_loss(functional.log_softmax(call(second, x), -1), graph.labels)
        loss.backward()
        return loss

    return epoch_of(model, loss_and_backward)


def perceptron(inputs: int, outputs: int) -> nn.Module:
    """GIN's two linear layers."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


def pyg(graph: Graph, kind: str, form: Form) -> Epoch:
    from torch_geometric import nn as layers

    def layer(inputs: int, outputs: int) -> nn.Module:
        made: nn.Module
        match kind:
            case "gcn":
                made = layers.GCNConv(inputs, outputs, cached=True)
            case "sage":
                made = layers.SAGEConv(inputs, outputs)
            case "graphconv":
                made = layers.GraphConv(inputs, outputs)
            case _:
                made = layers.GINConv(perceptron(inputs, outputs))
        return made

    edges: Any = graph.edges
    if form == "adj_t":
        from torch_sparse import SparseTensor

        source, target = graph.edges
        edges = SparseTensor(row=target, col=source, sparse_sizes=(NODES, NODES)).fill_cache_()
    pair = layer(FEATURES, HIDDEN), layer(HIDDEN, CLASSES)
    return theirs(graph, *pair, lambda one, x: one(x, edges))


class _SummedByDgl(nn.Module):
    """GraphConv of Morris et al. by DGL's own message passing."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.neighbours = nn.Linear(inputs, outputs)
        self.root = nn.Linear(inputs, outputs, bias=False)

    def forward(self, links: Any, x: Tensor) -> Tensor:
        import dgl.function as of

        with links.local_scope():
            narrows = self.root.in_features > self.root.out_features
            links.ndata["h"] = self.neighbours(x) if narrows else x
            links.update_all(of.copy_u("h", "m"), of.sum("m", "n"))
            total = links.ndata["n"]
            return (total if narrows else self.neighbours(total)) + self.root(x)


def dgl(graph: Graph, kind: str) -> Epoch:
    library = import_dgl()
    from dgl.nn.pytorch import GINConv, GraphConv, SAGEConv

    source, target = graph.edges
    links = library.graph((source, target), num_nodes=NODES)
    if kind == "gcn":
        links = library.add_self_loop(links)

    def layer(inputs: int, outputs: int) -> nn.Module:
        made: nn.Module
        match kind:
            case "gcn":
                made = GraphConv(inputs, outputs)
            case "sage":
                made = SAGEConv(inputs, outputs, "mean")
            case "graphconv":
                made = _SummedByDgl(inputs, outputs)
            case _:
                made = GINConv(perceptron(inputs, outputs), "sum")
        return made

    pair = layer(FEATURES, HIDDEN), layer(HIDDEN, CLASSES)
    return theirs(graph, *pair, lambda one, x: one(links, x))


def contestant(kind: str, form: Form) -> Epoch:
    """An epoch of one kind in one of the forms, for `benchmarks.turns`."""
    graph = large_graph()
    if form == "fused":
        return ours(graph, kind)
    return dgl(graph, kind) if form == "dgl" else pyg(graph, kind, form)


def peak(kind: str, form: Form, threads: int) -> dict[str, float]:
    """MiB that a process holds at most in two epochs, and before the first."""
    torch.set_num_threads(threads)
    epoch = contestant(kind, form)
    before = peak_mib()
    for _ in range(2):
        epoch()
    return {"before": before, "peak": peak_mib()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="|".join(KINDS), help="default: all")
    parser.add_argument("--rounds", type=int, default=7, help="rounds timed")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contestant")
    given = parser.parse_args()
    for kind in given.kinds or KINDS:
        entries = {
            name: Entry("benchmarks.bench_layers:contestant", {"kind": kind, "form": form})
            for form, name in FORMS.items()
        }
        entries = those_that_run(entries, given.threads)
        seconds = compete(entries, given.rounds, given.threads, warmup=2)
        for name, values in seconds.items():
            ratio = statistics.median(v / o for v, o in zip(values, seconds["fused"], strict=True))
            print(
                f"{kind:10} {name:16} median {statistics.median(values):6.3f} s"
                f"  ({min(values):.3f} to {max(values):.3f}), {ratio:5.2f} of ours"
            )


if __name__ == "__main__":
    main()
