"""Steps of PyG's and DGL's own programs where a loader makes mini-batches: small graphs, and links.

Each library uses its own loader and layers, without workers. For graphs: five convolutions, mean
pooling and a linear layer (Xu et al. 2019). For links: layers of ten neighbours each, one negative
for each link. DGL's edge prediction sampler leaves out the links that a mini-batch predicts, in
both directions, as ours does; PyG's `LinkNeighborLoader` leaves them in and so does less.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.contestants.graph_layers import perceptron
from gnnhpc.data.load_graph import load_graph, load_graph_set
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.link_split import LinkSplit, split_links
from gnnhpc.models.libraries import import_dgl

Losses = Iterator[Callable[[], Tensor]]
"""Each takes a mini-batch; the function then computes its loss."""


def graphs(library: str, settings: dict[str, Any], steps: int) -> Callable[[], float]:
    """Seconds a step of graph classification, of so many steps a turn."""
    experiment = Experiment.model_validate(settings)
    made = load_graph_set(experiment.data, None)
    model: Any = experiment.model
    widths = [made.features.shape[1], *[model.hidden] * model.layers]
    assert experiment.batch_size is not None
    convolution = (_pyg_graphs if library == "pyg" else _dgl_graphs)(made, experiment.batch_size)
    layers, batches, forward, pool = convolution(model.name, widths)
    linear = nn.Linear(model.hidden, made.classes)
    network = nn.ModuleList((*layers, linear))

    def losses() -> Losses:
        for x, graph, labels in batches:

            def loss(x: Tensor = x, graph: Any = graph, labels: Tensor = labels) -> Tensor:
                for layer in layers:
                    x = functional.relu(forward(layer, graph, x))
                    x = functional.dropout(x, model.dropout)
                scores = functional.log_softmax(linear(pool(graph, x)), dim=-1)
                return functional.nll_loss(scores, labels)

            yield loss

    return _turn(network, losses(), experiment, steps)


def _turn(
    network: nn.Module, losses: Losses, experiment: Experiment, steps: int
) -> Callable[[], float]:
    adam = experiment.optimizer
    optimizer = torch.optim.Adam(network.parameters(), lr=adam.lr, weight_decay=adam.weight_decay)

    def turn() -> float:
        began = time.perf_counter()
        for _ in range(steps):
            loss = next(losses)
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        return (time.perf_counter() - began) / steps

    return turn


def _endless(loader: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _pyg_graphs(made: GraphSet, batch: int) -> Callable[..., Any]:
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GCNConv, GINConv, global_mean_pool

    data = [
        Data(x=x, edge_index=edges, y=label.view(1), num_nodes=len(x))
        for x, edges, label in _one_by_one(made)
    ]
    batches = _endless(DataLoader(data, batch_size=batch, shuffle=True))

    def build(model: str, widths: list[int]) -> Any:
        pairs = itertools.pairwise(widths)
        layers = [GINConv(perceptron(a, b)) if model == "gin" else GCNConv(a, b) for a, b in pairs]
        return (
            layers,
            ((each.x, each, each.y) for each in batches),
            lambda layer, graph, x: layer(x, graph.edge_index),
            lambda graph, x: global_mean_pool(x, graph.batch, graph.num_graphs),
        )

    return build


def _dgl_graphs(made: GraphSet, batch: int) -> Callable[..., Any]:
    library = import_dgl()
    from dgl.dataloading import GraphDataLoader
    from dgl.nn.pytorch import AvgPooling, GINConv, GraphConv

    def build(model: str, widths: list[int]) -> Any:
        data = []
        for x, (source, target), label in _one_by_one(made):
            graph = library.graph((source, target), num_nodes=len(x))
            # DGL's GCN counts a node among its own neighbours only if it has an edge to itself.
            graph = library.add_self_loop(graph) if model == "gcn" else graph
            graph.ndata["x"] = x
            data.append((graph, label))
        batches = _endless(GraphDataLoader(data, batch_size=batch, shuffle=True))
        pairs, pool = itertools.pairwise(widths), AvgPooling()
        layers = [
            GINConv(perceptron(a, b), "sum") if model == "gin" else GraphConv(a, b)
            for a, b in pairs
        ]
        return (
            layers,
            ((graph.ndata["x"], graph, labels) for graph, labels in batches),
            lambda layer, graph, x: layer(graph, x),
            pool,
        )

    return build


def _one_by_one(made: GraphSet) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each training graph: dense features, edges numbered within the graph, and the label."""
    x, first = made.features.to_dense(), made.first
    bounds = torch.searchsorted(made.edges[1].contiguous(), first)
    for number in made.numbers("train").tolist():
        begin, end = int(first[number]), int(first[number + 1])
        edges = made.edges[:, int(bounds[number]) : int(bounds[number + 1])] - begin
        yield x[begin:end].clone(), edges.contiguous(), made.labels[number]


def links(library: str, settings: dict[str, Any]) -> Callable[[], float]:
    """Seconds of a step of learning links: sampling, features, forward, backward, Adam."""
    experiment = Experiment.model_validate(settings)
    graph = load_graph(experiment.data, None)
    assert experiment.task is not None
    shares = experiment.task.val_share, experiment.task.test_share
    split = split_links(graph, experiment.seed, *shares)
    torch.manual_seed(0)
    stack, losses = (_dgl_links if library == "dgl" else _pyg_links)(split, experiment)
    return _turn(stack, losses, experiment, 1)


class _Stack(nn.Module):
    """Convolutions with ReLU and dropout between them; `call` is given each layer's edges."""

    def __init__(
        self, experiment: Experiment, features: int, layer: Callable[..., nn.Module]
    ) -> None:
        super().__init__()
        model: Any = experiment.model
        self.dropout = model.dropout
        widths = [features, *[model.hidden] * model.layers]
        self.layers = nn.ModuleList(layer(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor, edges: list[Any], call: Callable[..., Tensor]) -> Tensor:
        for number, (layer, each) in enumerate(zip(self.layers, edges, strict=True)):
            if number:
                x = functional.dropout(functional.relu(x), self.dropout)
            x = call(layer, x, each)
        return x


def _dgl_links(split: LinkSplit, experiment: Experiment) -> tuple[nn.Module, Losses]:
    dgl = import_dgl()
    from dgl.nn.pytorch import GraphConv, SAGEConv

    assert experiment.sampling is not None
    source, target = split.message.edges
    features = split.message.features
    graph = dgl.graph((source, target), num_nodes=split.message.nodes)
    width = features.shape[1]
    if experiment.model.name == "gcn":
        graph = dgl.add_self_loop(graph)
        stack = _Stack(experiment, width, lambda a, b: GraphConv(a, b, allow_zero_in_degree=True))
    else:
        stack = _Stack(experiment, width, lambda a, b: SAGEConv(a, b, "mean"))
    reverse = torch.arange(graph.num_edges())
    reverse[split.both[:, 0]], reverse[split.both[:, 1]] = split.both[:, 1], split.both[:, 0]
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler(list(experiment.sampling.fanouts)),
        exclude="reverse_id",
        reverse_eids=reverse,
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
    )
    loader = dgl.dataloading.DataLoader(
        *(graph, split.both[:, 0].clone(), sampler),
        batch_size=experiment.batch_size,
        shuffle=True,
        num_workers=0,
    )

    def losses() -> Losses:
        for inputs, known, others, blocks in _endless(loader):
            x = features[inputs]

            def loss(x: Tensor = x, known: Any = known, others: Any = others) -> Tensor:
                out = stack(x, blocks, lambda layer, x, block: layer(block, x))  # noqa: B023
                return _link_loss(out, *(torch.stack(each.edges()) for each in (known, others)))

            yield loss

    return stack, losses()


def _pyg_links(split: LinkSplit, experiment: Experiment) -> tuple[nn.Module, Losses]:
    from torch_geometric.data import Data
    from torch_geometric.loader import LinkNeighborLoader
    from torch_geometric.nn import GCNConv, SAGEConv

    from gnnhpc.batches.sampled.pyg_loader import sampled_hops

    assert experiment.sampling is not None
    graph, fanouts = split.message, list(experiment.sampling.fanouts)
    warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation")
    loader = LinkNeighborLoader(
        Data(x=graph.features, edge_index=graph.edges, num_nodes=graph.nodes),
        num_neighbors=fanouts,
        edge_label_index=split.train.T.contiguous(),
        neg_sampling="binary",
        batch_size=experiment.batch_size,
        shuffle=True,
        num_workers=0,
    )
    kind = GCNConv if experiment.model.name == "gcn" else SAGEConv
    stack = _Stack(experiment, graph.features.shape[1], kind)

    def losses() -> Losses:
        for data in _endless(loader):

            def loss(data: Any = data) -> Tensor:
                # The rows and edges that each layer needs, as after `trim_to_layer`.
                seeds = int(data.edge_label_index.max()) + 1
                hops = sampled_hops(data.edge_index, seeds, len(fanouts))
                edges = [(rows, data.edge_index[:, :count]) for _, rows, count in hops[::-1]]
                out = stack(data.x, edges, lambda layer, x, each: layer(x[: each[0]], each[1]))
                known = data.edge_label == 1
                return _link_loss(out, *(data.edge_label_index[:, w] for w in (known, ~known)))

            yield loss

    return stack, losses()


def _link_loss(embeddings: Tensor, known: Tensor, others: Tensor) -> Tensor:
    one, other = torch.cat((known, others), 1)
    labels = (torch.arange(len(one)) < known.shape[1]).to(embeddings.dtype)
    scores = (embeddings[one] * embeddings[other]).sum(1)
    return functional.binary_cross_entropy_with_logits(scores, labels)
