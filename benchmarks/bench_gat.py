"""A training epoch of the two-layer GAT on a PubMed-shaped graph: ours, PyG's, DGL's.

    python benchmarks/bench_gat.py [--rounds 15] [--threads 2] [--csv FILE]

Each round times one epoch (zero gradients, forward, loss, backward, Adam, dropout 0.6 on) of
every contestant in turn, so that what the machine does besides hits all alike; printed are
medians and the median of the rounds' ratios with a bootstrap interval. PyG and DGL run their own
layers and dropout on dense features, as their examples and Dearing & Wang do. DGL is measured
where it can be imported.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.data.graphs import load_graph
from gnnhpc.data.settings import SyntheticCitation
from gnnhpc.graphs.chunks import ChunkMode, build_chunks
from gnnhpc.graphs.features import feature_rows
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.models.context import Context
from gnnhpc.models.gat.model import Gat
from gnnhpc.models.protocol import BuildOptions

PUBMED_SHAPED = SyntheticCitation(nodes=19_717, edges=88_648, features=500, classes=3)
FEATURE_DENSITY = 0.1
Epoch = Callable[[], float]


@dataclass(frozen=True)
class Goal:
    """`ours` shall be `at_least` times faster than `reference`."""

    what: str
    ours: str
    reference: str
    at_least: float


GOALS = (
    Goal("GAT epoch against PyG", "fused", "pyg", 4.0),
    Goal("GAT epoch against DGL", "fused", "dgl", 3.0),
    # Four chunks may cost 1.5 times one: a ratio of one to four of at least 1 / 1.5.
    Goal("GAT epoch, four halo chunks", "fused, 4 halo chunks", "fused", 1 / 1.5),
)


def pubmed_shaped() -> Graph:
    """A made-up graph of PubMed's sizes, a tenth of its features not zero."""
    graph = load_graph(PUBMED_SHAPED, None)
    draw = torch.Generator().manual_seed(0)
    shape = graph.features.shape
    features = torch.rand(shape, generator=draw)
    features *= torch.rand(shape, generator=draw) < FEATURE_DENSITY
    features /= features.sum(1, keepdim=True).clamp(min=1e-12)
    return Graph(
        graph.name, features.to_sparse_csr(), graph.labels, graph.edges, graph.masks, graph.classes
    )


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


def pyg(graph: Graph) -> Epoch:
    """PyG's GATConv as its own example uses it."""
    from torch_geometric.nn import GATConv

    features = graph.features.to_dense()
    first = GATConv(features.shape[1], 8, heads=8, dropout=0.6)
    second = GATConv(64, graph.classes, heads=8, concat=False, dropout=0.6)

    def log_probabilities() -> Tensor:
        x = functional.dropout(features, 0.6)
        x = functional.elu(first(x, graph.edges))
        x = functional.dropout(x, 0.6)
        return functional.log_softmax(second(x, graph.edges), dim=-1)

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


def contestants(graph: Graph) -> dict[str, Epoch]:
    found = {
        "fused": ours(graph, "fused"),
        "fused, 4 halo chunks": ours(graph, "fused", 4),
        "reference": ours(graph, "reference"),
        "pyg": pyg(graph),
    }
    if importlib.util.find_spec("dgl") is not None:
        found["dgl"] = dgl(graph)
    return found


def interleaved(epochs: dict[str, Epoch], rounds: int, warmup: int = 3) -> dict[str, list[float]]:
    """Seconds of each contestant's epoch in each round, warm-up rounds left out."""
    seconds: dict[str, list[float]] = {name: [] for name in epochs}
    for number in range(rounds + warmup):
        for name, epoch in epochs.items():
            spent = epoch()
            if number >= warmup:
                seconds[name].append(spent)
    return seconds


def ratio(reference: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """Median of the rounds' ratios and its 95 % bootstrap interval."""
    ratios = np.array(reference) / np.array(ours)
    draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
    return float(np.median(ratios)), float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds timed")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contestant")
    parser.add_argument("--csv", type=Path, help="also write the goals' rows here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    seconds = interleaved(contestants(pubmed_shaped()), arguments.rounds)
    for name, values in seconds.items():
        milliseconds = [1e3 * value for value in values]
        print(
            f"{name:22} median {statistics.median(milliseconds):7.1f} ms"
            f"  ({min(milliseconds):.1f} to {max(milliseconds):.1f})"
        )
    rows = []
    for goal in GOALS:
        if goal.reference in seconds:
            middle, low, high = ratio(seconds[goal.reference], seconds[goal.ours])
            times = [statistics.median(seconds[name]) for name in (goal.ours, goal.reference)]
            met = "yes" if middle >= goal.at_least else "no"
            rows.append([goal.what, *times, middle, low, high, goal.at_least, met])
            print(f"{goal.what}: {middle:.2f} ({low:.2f} to {high:.2f}), goal {goal.at_least:.2f}")
    if arguments.csv:
        with arguments.csv.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            header = "what,ours,reference,ratio,ratio_low,ratio_high,goal,met"
            writer.writerow(header.split(","))
            writer.writerows(rows)


if __name__ == "__main__":
    main()
