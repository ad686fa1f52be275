"""Steps of PyG's and DGL's own programs where a loader makes mini-batches: small graphs, and links.

Each library uses its own loader and layers, without workers. For graphs: five convolutions, mean
pooling and a linear layer (Xu et al. 2019). For links: layers of ten neighbours each, one negative
for each link. DGL's edge prediction sampler leaves out the links that a mini-batch predicts, in
both directions, as ours does; PyG's `LinkNeighborLoader` leaves them in and so does less.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.contestants.library_layers import dgl_layer, pyg_layer, training_steps
from gnnhpc.data.load_graph import load_graph, load_graph_set
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.link_split import LinkSplit, split_links
from gnnhpc.models.libraries import import_dgl


class _Stack(nn.Module):
    """The convolutions of an experiment's model, with ReLU and dropout between them."""

    def __init__(self, library: str, experiment: Experiment, features: int) -> None:
        super().__init__()
        model: Any = experiment.model
        self.is_dgl, self.dropout = library == "dgl", model.dropout
        layer = dgl_layer if self.is_dgl else pyg_layer
        widths = [features, *[model.hidden] * model.layers]
        self.layers = nn.ModuleList(layer(model.name, a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor, edges: Sequence[Any]) -> Tensor:
        """`edges` of each layer: DGL's graph, or the rows that PyG's layer reads and its edges."""
        for number, (layer, each) in enumerate(zip(self.layers, edges, strict=True)):
            x = self.activated(x) if number else x
            x = layer(each, x) if self.is_dgl else layer(x[: each[0]], each[1])
        return x

    def activated(self, x: Tensor) -> Tensor:
        return functional.dropout(functional.relu(x), self.dropout)


def graphs(library: str, settings: dict[str, Any], steps: int) -> Callable[[], float]:
    """Seconds a step of graph classification, of so many steps a turn."""
    experiment = Experiment.model_validate(settings)
    made = load_graph_set(experiment.data, None)
    stack = _Stack(library, experiment, made.features.shape[1])
    model: Any = experiment.model
    linear = nn.Linear(model.hidden, made.classes)

    def loss(x: Tensor, edges: Any, pool: Callable[[Tensor], Tensor], labels: Tensor) -> Tensor:
        nodes = stack.activated(stack(x, [edges] * model.layers))
        scores = functional.log_softmax(linear(pool(nodes)), dim=-1)
        return functional.nll_loss(scores, labels)

    batches = (_dgl_graphs if library == "dgl" else _pyg_graphs)(made, experiment)
    losses = (partial(loss, *batch) for batch in batches)
    return training_steps(
        nn.ModuleList((stack, linear)), losses, steps=steps, **_adam_of(experiment)
    )


def _adam_of(experiment: Experiment) -> dict[str, float]:
    adam = experiment.optimizer
    return {"lr": adam.lr, "weight_decay": adam.weight_decay}


def _endless(loader: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _pyg_graphs(made: GraphSet, experiment: Experiment) -> Iterator[tuple[Any, ...]]:
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import global_mean_pool

    data = [
        Data(x=x, edge_index=edges, y=label.view(1), num_nodes=len(x))
        for x, edges, label in _one_by_one(made)
    ]
    for each in _endless(DataLoader(data, batch_size=experiment.batch_size, shuffle=True)):
        pool = partial(global_mean_pool, batch=each.batch, size=each.num_graphs)
        yield each.x, (None, each.edge_index), pool, each.y


def _dgl_graphs(made: GraphSet, experiment: Experiment) -> Iterator[tuple[Any, ...]]:
    library = import_dgl()
    from dgl.dataloading import GraphDataLoader
    from dgl.nn.pytorch import AvgPooling

    data = []
    for x, edges, label in _one_by_one(made):
        graph = library.graph(tuple(edges), num_nodes=len(x))
        # DGL's GCN counts a node among its own neighbours only if it has an edge to itself.
        graph = library.add_self_loop(graph) if experiment.model.name == "gcn" else graph
        graph.ndata["x"] = x
        data.append((graph, label))
    loader = GraphDataLoader(data, batch_size=experiment.batch_size, shuffle=True)
    for graph, labels in _endless(loader):
        yield graph.ndata["x"], graph, partial(AvgPooling(), graph), labels


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
    graph, task = load_graph(experiment.data, None), experiment.task
    assert task is not None
    split = split_links(graph, experiment.seed, task.val_share, task.test_share)
    torch.manual_seed(0)
    stack = _Stack(library, experiment, graph.features.shape[1])

    def loss(x: Tensor, edges: Sequence[Any], known: Tensor, others: Tensor) -> Tensor:
        embeddings = stack(x, edges)
        one, other = torch.cat((known, others), 1)
        labels = (torch.arange(len(one)) < known.shape[1]).to(embeddings.dtype)
        scores = (embeddings[one] * embeddings[other]).sum(1)
        return functional.binary_cross_entropy_with_logits(scores, labels)

    batches = (_dgl_links if library == "dgl" else _pyg_links)(split, experiment)
    losses = (partial(loss, *batch) for batch in batches)
    return training_steps(stack, losses, **_adam_of(experiment))


def _dgl_links(split: LinkSplit, experiment: Experiment) -> Iterator[tuple[Any, ...]]:
    dgl = import_dgl()
    assert experiment.sampling is not None
    graph = dgl.graph(tuple(split.message.edges), num_nodes=split.message.nodes)
    if experiment.model.name == "gcn":
        graph = dgl.add_self_loop(graph)
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
    for inputs, known, others, blocks in _endless(loader):
        pairs = (torch.stack(each.edges()) for each in (known, others))
        yield split.message.features[inputs], blocks, *pairs


def _pyg_links(split: LinkSplit, experiment: Experiment) -> Iterator[tuple[Any, ...]]:
    from torch_geometric.data import Data
    from torch_geometric.loader import LinkNeighborLoader

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
    for data in _endless(loader):
        # The rows and edges that each layer needs, as after `trim_to_layer`.
        seeds = int(data.edge_label_index.max()) + 1
        hops = sampled_hops(data.edge_index, seeds, len(fanouts))
        edges = [(rows, data.edge_index[:, :count]) for _, rows, count in hops[::-1]]
        known = data.edge_label == 1
        yield data.x, edges, data.edge_label_index[:, known], data.edge_label_index[:, ~known]
