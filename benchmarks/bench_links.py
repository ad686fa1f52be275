"""Seconds of a step of learning links: ours, DGL's and PyG's, each by its own loader and layers.

    python -m benchmarks.bench_links [--model sage] [--batch 1024] [--rounds 9] [--threads 2]

A graph of ogbl-collab's size with skewed degrees, three layers of ten neighbours, one negative for
each link: drawing links, negatives and neighbours, gathering features, forward, backward and Adam,
one after another, without workers. DGL's `as_edge_prediction_sampler` leaves out the links that a
mini-batch predicts, in both directions, as ours does; PyG's `LinkNeighborLoader` leaves them in and
so does less. Each layer computes only the rows that the next needs, of PyG as after
`trim_to_layer`; `--forms "pyg, untrimmed"` does without. All have the same links to train on; each
contestant has a process of its own (`benchmarks.turns`).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.drawn_step import drawn_step
from benchmarks.turns import Entry, compete, those_that_run
from gnnhpc.data.graphs import load_graph
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.links.split import LinkSplit, split_links

NODES, EDGES, FEATURES = 235_868, 2_570_930, 128
"""Of ogbl-collab, directed, so that its training links are about as many."""
LAYERS, FANOUT, WIDTH, DROPOUT = 3, 10, 256, 0.5
STEPS = 10_000
LR, DECAY = 0.005, 5e-4


def experiment_of(model: str, batch: int, nodes: int, edges: int) -> Experiment:
    return Experiment.model_validate(
        {
            "model": {"name": model, "layers": LAYERS, "hidden": WIDTH, "dropout": DROPOUT},
            "data": {"name": "reddit-shaped", "nodes": nodes, "edges": edges, "features": FEATURES},
            "sampling": {"fanouts": [FANOUT] * LAYERS, "workers": 0},
            "task": {"name": "links", "embedding": WIDTH},
            "batch_size": batch,
            "train_steps": STEPS,
            "test_steps": 0,
            "optimizer": {"lr": LR, "weight_decay": DECAY},
        }
    )


def contestant(form: str, model: str, batch: int, nodes: int, edges: int) -> Callable[[], float]:
    """One step a turn."""
    experiment = experiment_of(model, batch, nodes, edges)
    if form == "ours":
        return drawn_step(experiment)
    graph = load_graph(experiment.data, None)
    assert experiment.task is not None
    shares = experiment.task.val_share, experiment.task.test_share
    split = split_links(graph, experiment.seed, *shares)
    torch.manual_seed(0)
    if form == "dgl":
        return _dgl(split, model, batch)
    return _pyg(split, model, batch, trim=form == "pyg")


def _turn(model: nn.Module, losses: Iterator[Callable[[], Tensor]]) -> Callable[[], float]:
    """`losses` draws a mini-batch each and then computes its loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, weight_decay=DECAY)

    def turn() -> float:
        began = time.perf_counter()
        loss = next(losses)
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        return time.perf_counter() - began

    return turn


class _Stack(nn.Module):
    """Convolutions with ReLU and dropout between them."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        widths = [FEATURES, *[WIDTH] * LAYERS]
        self.layers = nn.ModuleList(layer(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor, edges: list[Any]) -> Tensor:
        for number, (layer, each) in enumerate(zip(self.layers, edges, strict=True)):
            if number:
                x = functional.dropout(functional.relu(x), DROPOUT)
            if hasattr(each, "num_dst_nodes"):
                x = layer(each, x)
            else:
                rows, ends = each
                x = layer(x[:rows], ends)
        return x


def _dgl(split: LinkSplit, model: str, batch: int) -> Callable[[], float]:
    from gnnhpc.models.libraries import import_dgl

    dgl = import_dgl()
    from dgl.nn import GraphConv, SAGEConv

    source, target = split.message.edges
    features = split.message.features
    graph = dgl.graph((source, target), num_nodes=split.message.nodes)
    if model == "gcn":
        graph = dgl.add_self_loop(graph)
        stack = _Stack(lambda a, b: GraphConv(a, b, allow_zero_in_degree=True))
    else:
        stack = _Stack(lambda a, b: SAGEConv(a, b, "mean"))
    reverse = torch.arange(graph.num_edges())
    reverse[split.both[:, 0]], reverse[split.both[:, 1]] = split.both[:, 1], split.both[:, 0]
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler([FANOUT] * LAYERS),
        exclude="reverse_id",
        reverse_eids=reverse,
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
    )
    loader = dgl.dataloading.DataLoader(
        graph, split.both[:, 0].clone(), sampler, batch_size=batch, shuffle=True, num_workers=0
    )

    def losses() -> Iterator[Callable[[], Tensor]]:
        while True:
            for inputs, links, others, blocks in loader:
                x = features[inputs]

                def loss(x: Tensor = x, links: Any = links, others: Any = others) -> Tensor:
                    found = stack(x, blocks)  # noqa: B023
                    pairs = [torch.stack(each.edges()) for each in (links, others)]
                    return _loss(found, *pairs)

                yield loss

    return _turn(stack, losses())


def _pyg(split: LinkSplit, model: str, batch: int, *, trim: bool) -> Callable[[], float]:
    from torch_geometric.data import Data
    from torch_geometric.loader import LinkNeighborLoader
    from torch_geometric.nn import GCNConv, SAGEConv

    from gnnhpc.batches.sampled.libraries.pyg_sampler import drawn_hops

    graph = split.message
    warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation")
    loader = LinkNeighborLoader(
        Data(x=graph.features, edge_index=graph.edges, num_nodes=graph.nodes),
        num_neighbors=[FANOUT] * LAYERS,
        edge_label_index=split.train.T.contiguous(),
        neg_sampling="binary",
        batch_size=batch,
        shuffle=True,
        num_workers=0,
    )
    stack = _Stack(GCNConv if model == "gcn" else SAGEConv)

    def layers(data: Any) -> list[tuple[int, Tensor]]:
        """Rows that enter each, and its edges; torch-sparse does not tell `trim_to_layer` which."""
        if not trim:
            return [(len(data.x), data.edge_index)] * LAYERS
        seeds = int(data.edge_label_index.max()) + 1
        hops = drawn_hops(data.edge_index, seeds, LAYERS)
        return [(reached, data.edge_index[:, :edges]) for _, reached, edges in hops[::-1]]

    def losses() -> Iterator[Callable[[], Tensor]]:
        while True:
            for data in loader:

                def loss(data: Any = data) -> Tensor:
                    found = stack(data.x, layers(data))
                    known = data.edge_label == 1
                    pairs = [data.edge_label_index[:, which] for which in (known, ~known)]
                    return _loss(found, *pairs)

                yield loss

    return _turn(stack, losses())


def _loss(embeddings: Tensor, links: Tensor, others: Tensor) -> Tensor:
    one, other = torch.cat((links, others), 1)
    labels = (torch.arange(len(one)) < links.shape[1]).to(embeddings.dtype)
    scores = (embeddings[one] * embeddings[other]).sum(1)
    return functional.binary_cross_entropy_with_logits(scores, labels)


FORMS = ("ours", "dgl", "pyg", "pyg, untrimmed")


def entries_of(
    model: str, batch: int, nodes: int, edges: int, forms: Sequence[str] = FORMS[:3]
) -> dict[str, Entry]:
    given = {"model": model, "batch": batch, "nodes": nodes, "edges": edges}
    return {
        form: Entry("benchmarks.bench_links:contestant", {"form": form} | given) for form in forms
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=("sage", "gcn"), default="sage")
    parser.add_argument("--batch", type=int, default=1024, help="links of a mini-batch")
    parser.add_argument("--rounds", type=int, default=9, help="steps timed")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contestant")
    parser.add_argument("--nodes", type=int, default=NODES, help="of the graph")
    parser.add_argument("--edges", type=int, default=EDGES, help="of the graph")
    parser.add_argument("--forms", nargs="+", choices=FORMS, help="beside ours; all if not told")
    given = parser.parse_args()
    forms = [*dict.fromkeys(("ours", *(given.forms or FORMS)))]
    entries = entries_of(given.model, given.batch, given.nodes, given.edges, forms)
    entries = those_that_run(entries, given.threads)
    seconds = compete(entries, given.rounds, given.threads, warmup=2)
    for form, values in seconds.items():
        ratios = sorted(v / o for v, o in zip(values, seconds["ours"], strict=True))
        print(
            f"{form:14} median {statistics.median(values):6.3f} s a step"
            f"  ({min(values):.3f} to {max(values):.3f}), ours {statistics.median(ratios):5.2f}"
            f" times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
