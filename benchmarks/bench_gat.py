"""A training epoch of the two-layer GAT on a PubMed-shaped graph: ours, PyG's, DGL's.

    python -m benchmarks.bench_gat [--rounds 15] [--threads 2] [--dense]

Each contestant has a process of its own (`benchmarks.turns`); each round times one epoch of every
one in turn: zero gradients, forward, loss, backward, Adam, dropout 0.6 on. Printed are medians.
PyG and DGL run their own layers and dropout on dense features, as their examples and Dearing &
Wang do; PyG gets its edges as `edge_index` and, where torch-sparse can be imported, as `adj_t`.
DGL is measured where it can be imported.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.turns import Entry, compete, those_that_run
from gnnhpc.data.graphs import load_graph
from gnnhpc.data.settings import SyntheticCitation
from gnnhpc.graphs.chunks import ChunkMode, build_chunks
from gnnhpc.graphs.features import feature_rows
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.models.context import Context
from gnnhpc.models.gat import Gat
from gnnhpc.models.model import BuildOptions

PUBMED_SHAPED = SyntheticCitation(nodes=19_717, edges=88_648, features=500, classes=3)
FEATURE_DENSITY = 0.1
Epoch = Callable[[], float]
Form = Literal["fused", "chunks", "reference", "edge_index", "adj_t", "dgl"]
NAMES: dict[Form, str] = {
    "fused": "fused",
    "chunks": "fused, 4 halo chunks",
    "reference": "pyg",
    "edge_index": "PyG, edge_index",
    "adj_t": "PyG, adj_t",
    "dgl": "DGL",
}


def pubmed_shaped(*, dense: bool = False) -> Graph:
    """A made-up graph of PubMed's sizes, a tenth of its features not zero; all if `dense`."""
    graph = load_graph(PUBMED_SHAPED, None)
    draw = torch.Generator().manual_seed(0)
    shape = graph.features.shape
    features = torch.rand(shape, generator=draw)
    if not dense:
        features *= torch.rand(shape, generator=draw) < FEATURE_DENSITY
    features /= features.sum(1, keepdim=True).clamp(min=1e-12)
    stored = features if dense else features.to_sparse_csr()
    return Graph(graph.name, stored, graph.labels, graph.edges, graph.masks, graph.classes)


def epoch_of(model: nn.Module, loss_and_backward: Callable[[], Tensor]) -> Epoch:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    model.train()

    def epoch() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss_and_backward()
        optimizer.step()
        return time.perf_counter() - start

    return epoch


def ours(graph: Graph, implementation: str, count: int = 1, mode: ChunkMode = "halo") -> Epoch:
    """This project's layers over `count` chunks, gradients accumulated."""
    config = Gat.model_validate({"implementation": implementation})
    facts = PUBMED_SHAPED.facts()
    torch.manual_seed(0)
    layers = config.outline(facts)
    model = nn.ModuleList(config.build(layer, BuildOptions(torch.float32)) for layer in layers)
    chunkset = build_chunks(graph, count, mode, config.layers)
    inputs = [feature_rows(graph.features, c.nodes, torch.float32) for c in chunkset.chunks]
    steps = itertools.count()
    labelled = int(graph.masks["train"].sum())

    def loss_and_backward() -> Tensor:
        total, step = torch.zeros(()), next(steps)
        for number, chunk in enumerate(chunkset.chunks):
            x = inputs[number]
            for layer in model:
                x = layer(x, Context(number, step, graph=chunk))
            targets = chunk.targets["train"]
            loss = functional.nll_loss(x, targets, ignore_index=IGNORED, reduction="sum")
            loss = loss / labelled
            loss.backward()
            total += loss.detach()
        return total

    return epoch_of(model, loss_and_backward)


def against(graph: Graph, model: nn.Module, log_probabilities: Callable[[], Tensor]) -> Epoch:
    train = graph.masks["train"]

    def loss_and_backward() -> Tensor:
        loss = functional.nll_loss(log_probabilities()[train], graph.labels[train])
        loss.backward()
        return loss

    return epoch_of(model, loss_and_backward)


def pyg(graph: Graph, form: Literal["edge_index", "adj_t"] = "edge_index") -> Epoch:
    """PyG's GATConv as its own example uses it, edges in one of the forms that it takes."""
    from torch_geometric.nn import GATConv

    features = graph.features.to_dense()
    first = GATConv(features.shape[1], 8, heads=8, dropout=0.6)
    second = GATConv(64, graph.classes, heads=8, concat=False, dropout=0.6)
    edges: Any = graph.edges
    if form == "adj_t":
        from torch_sparse import SparseTensor

        (source, target), nodes = graph.edges, len(graph.labels)
        edges = SparseTensor(row=target, col=source, sparse_sizes=(nodes, nodes)).fill_cache_()

    def log_probabilities() -> Tensor:
        x = functional.dropout(features, 0.6)
        x = functional.elu(first(x, edges))
        x = functional.dropout(x, 0.6)
        return functional.log_softmax(second(x, edges), dim=-1)

    return against(graph, nn.ModuleList((first, second)), log_probabilities)


def dgl(graph: Graph) -> Epoch:
    """DGL's GATConv; its older releases look for a module that setuptools has dropped."""
    import packaging

    sys.modules.setdefault("setuptools.extern.packaging", packaging)
    import dgl as library
    from dgl.nn.pytorch import GATConv

    features = graph.features.to_dense()
    source, target = graph.edges
    links = library.add_self_loop(library.graph((source, target), num_nodes=len(graph.labels)))
    options = {"feat_drop": 0.6, "attn_drop": 0.6, "negative_slope": 0.2}
    first = GATConv(features.shape[1], 8, 8, **options)
    second = GATConv(64, graph.classes, 8, **options)

    def log_probabilities() -> Tensor:
        x = functional.elu(first(links, features).flatten(1))
        return functional.log_softmax(second(links, x).mean(1), dim=-1)

    return against(graph, nn.ModuleList((first, second)), log_probabilities)


def contestant(form: Form, *, dense: bool = False) -> Epoch:
    """An epoch in one of the forms, for `benchmarks.turns`."""
    graph = pubmed_shaped(dense=dense)
    if form in ("fused", "reference"):
        return ours(graph, "pyg" if form == "reference" else form)
    if form == "chunks":
        return ours(graph, "fused", 4)
    return dgl(graph) if form == "dgl" else pyg(graph, form)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds timed")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contestant")
    parser.add_argument("--dense", action="store_true", help="no feature is zero")
    given = parser.parse_args()
    entries = {
        name: Entry("benchmarks.bench_gat:contestant", {"form": form, "dense": given.dense})
        for form, name in NAMES.items()
    }
    entries = those_that_run(entries, given.threads)
    for name, values in compete(entries, given.rounds, given.threads, warmup=3).items():
        milliseconds = [1e3 * value for value in values]
        print(
            f"{name:22} median {statistics.median(milliseconds):7.1f} ms"
            f"  ({min(milliseconds):.1f} to {max(milliseconds):.1f})"
        )


if __name__ == "__main__":
    main()
