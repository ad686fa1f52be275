"""Small graphs, and models of three layers on them, for the tests of chunks and layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.graphs.blocks import Block, GraphChunk
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.graphs.halo_chunks import ChunkSet
from gnnhpc.graphs.node_features import feature_rows
from gnnhpc.models.convolutions import Gcn, Gin, GraphConv, Sage
from gnnhpc.models.deep_gcn import Gcnii, ResGcn
from gnnhpc.models.gat import Gat, Gatv2
from gnnhpc.models.model import BuildOptions, Context, Model

MODELS: dict[str, Model] = {
    "gcn": Gcn(layers=3, hidden=20),
    "sage": Sage(layers=3, hidden=20),
    "sage-max": Sage(layers=3, hidden=20, aggregator="max"),
    "sage-pool": Sage(layers=3, hidden=20, aggregator="pool"),
    "gin": Gin(layers=3, hidden=20),
    "graphconv": GraphConv(layers=3, hidden=20),
    "gat": Gat(layers=3, heads=4, hidden=5),
    "gatv2": Gatv2(layers=3, heads=4, hidden=5),
    "resgcn": ResGcn(layers=3, hidden=9),
    "gcnii": Gcnii(layers=3, hidden=9),
}


def make_graph(
    nodes: int, pairs: int, *, features: int = 12, classes: int = 3, sparse: bool = True, seed: int
) -> Graph:
    """A random graph with about `pairs` undirected edges and features three quarters zero."""
    draw = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes, (2, pairs), generator=draw)
    ends = ends[:, ends[0] != ends[1]]
    keys = torch.cat((ends[1] * nodes + ends[0], ends[0] * nodes + ends[1])).unique()
    values = torch.rand(nodes, features, generator=draw)
    values *= torch.rand(nodes, features, generator=draw) < 0.25
    split = torch.randint(3, (nodes,), generator=draw)
    return Graph(
        name="random",
        features=values.to_sparse_csr() if sparse else values,
        labels=torch.randint(classes, (nodes,), generator=draw),
        edges=torch.stack((keys % nodes, keys // nodes)),
        masks={name: split == number for number, name in enumerate(("train", "val", "test"))},
        classes=classes,
    )


def dense_graph() -> Graph:
    """Of its 80 nodes most have more neighbours than a sampler of few takes."""
    return make_graph(80, 500, features=12, classes=5, seed=3)


def block_tensors(block: Block) -> Iterator[torch.Tensor]:
    """All that a block is made of, and its edges by source."""
    by = block.transpose
    yield from (block.indptr, block.source, block.target, block.edge)
    yield from (by.indptr, by.edge, by.target)


def chunk_set(*chunks: GraphChunk) -> ChunkSet:
    """Chunks that keep all edges, for `gradients`."""
    return ChunkSet(chunks, "halo", 1.0, 1.0, 1.0)


class GraphModel(nn.ModuleList):
    """Layers in order, and the graph whose features they are given."""

    graph: Graph


def make_model(
    graph: Graph, config: Gat, dtype: torch.dtype = torch.float64, seed: int = 0
) -> GraphModel:
    """The layers of `config` for `graph`, in order."""
    facts = Facts(
        "graph",
        graph.features.shape[1],
        graph.classes,
        nodes=len(graph.labels),
        edges=graph.edges.shape[1],
    )
    torch.manual_seed(seed)
    model = GraphModel(config.build(layer, BuildOptions(dtype)) for layer in config.outline(facts))
    model.graph = graph
    return model


def forward(model: GraphModel, context: Context) -> torch.Tensor:
    """Log-probabilities [rows, classes] of the context's chunk."""
    weight = next(model.parameters())
    rows = feature_rows(model.graph.features, context.chunk.nodes.cpu(), weight.dtype)
    x: Any = rows.to(weight.device)
    for layer in model:
        x = layer(x, context)
    output: torch.Tensor = x
    return output


def gradients(
    model: GraphModel, chunkset: ChunkSet, *, seed: int = 0, step: int = 0
) -> tuple[float, dict[str, torch.Tensor]]:
    """Summed loss over all chunks' training nodes, and the gradients that add up from them."""
    model.zero_grad()
    total = 0.0
    device = next(model.parameters()).device
    for number, chunk in enumerate(each.to(device) for each in chunkset.chunks):
        x = forward(model, Context(number, step, seed, chunk))
        loss = functional.nll_loss(x, chunk.targets["train"], ignore_index=IGNORED, reduction="sum")
        loss.backward()
        total += loss.item()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return total, {name: grad.clone() for name, grad in found.items() if grad is not None}


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, relative to the largest value expected."""
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def worst_layer_error(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> tuple[float, str]:
    """The largest difference of gradients relative to the largest in their layer, and where.

    A layer, not a parameter: a bias whose terms happen to cancel has no digits of its own.
    """
    assert found.keys() == expected.keys()
    layers: dict[str, list[str]] = {}
    for name in expected:
        layers.setdefault(name.partition(".")[0], []).append(name)
    errors = []
    for layer, names in layers.items():
        pair = [torch.cat([side[name].flatten() for name in names]) for side in (found, expected)]
        errors.append((relative_error(*pair), layer))
    return max(errors)


def assert_same_numbers(
    found: GraphModel, expected: GraphModel, chunks: Sequence[GraphChunk], tolerance: float
) -> None:
    """Outputs of each chunk's real rows, the summed loss and all gradients, with dropout."""
    device = next(found.parameters()).device
    for chunk in chunks:
        context = Context(seed=4, step=9, graph=chunk.to(device))
        real = chunk.nodes[: chunk.rows[-1]] >= 0
        assert relative_error(*(forward(m, context)[real] for m in (found, expected))) < tolerance
    sides = [gradients(m, chunk_set(*chunks), seed=4, step=9) for m in (found, expected)]
    (loss, ours), (other, theirs) = sides
    assert abs(loss - other) <= tolerance * abs(other)
    assert worst_layer_error(ours, theirs)[0] < tolerance
