"""Training epochs of two graph layers on a whole graph: ours, PyG's, DGL's.

The libraries' programs are as their own examples have them: layers over the whole graph, with
torch's dropout on dense features. PyG takes its edges as `edge_index`, or as `adj_t` where
torch-sparse is installed, and keeps GCN's weights (`cached=True`). Other forms of PyG are its
edge_index under `torch.compile`, torch's CSR matrix as `csr`, and a CUDA graph over edges that have
their self-loops already. DGL has no GraphConv of Morris et al.; its own message passing takes its
place.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.contestants.vig_steps import adjacency, synchronize
from gnnhpc.data.data_settings import SyntheticCitation
from gnnhpc.data.load_graph import load_graph
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.graphs.node_features import feature_rows
from gnnhpc.models.libraries import import_dgl
from gnnhpc.models.model import BuildOptions, Context
from gnnhpc.models.model_registry import model_class

Form = Literal["fused", "pyg", "edge_index", "adj_t", "csr", "compiled", "cuda_graph", "dgl"]
"""This project's layers, its layers of PyG, and the libraries' own programs."""
ATTENTION = ("gat", "gatv2")
"""Models with dropout of features and of coefficients, and self-loops that layers add."""
Scores = Callable[[], Tensor]
"""Computes the log-probabilities of the nodes."""


def contestant(
    form: Form,
    model: dict[str, Any],
    data: dict[str, Any],
    density: float | None = None,
    chunks: int = 1,
    all_labelled: bool = False,
    device: str = "cpu",
) -> Callable[[], float]:
    """Seconds of an epoch: zero gradients, forward, loss, backward, Adam.

    `data` are the sizes of a made-up graph, `density` is the share of its features that are not
    zero; without it they are those of the generator. Ours computes `chunks` halo chunks.
    """
    sizes, place = SyntheticCitation(**data), torch.device(device)
    graph = _graph(sizes, density, all_labelled=all_labelled)
    torch.manual_seed(0)
    if form in ("fused", "pyg"):
        layers, parts = _ours(form, model, sizes, graph, chunks, place)
    else:
        kind = "sage max" if model.get("aggregator") == "max" else model["name"]
        layers, parts = _libraries(form, kind, graph, place)
    targets = torch.where(graph.masks["train"], graph.labels, IGNORED).to(place)
    valid_targets = int(graph.masks["train"].sum())
    optimizer = torch.optim.Adam(
        layers.parameters(), lr=0.005, weight_decay=5e-4, capturable=form == "cuda_graph"
    )

    def epoch() -> None:
        optimizer.zero_grad()
        for nodes, scores in parts:
            out = scores()
            wanted = targets if nodes is None else nodes
            summed = functional.nll_loss(out, wanted, ignore_index=IGNORED, reduction="sum")
            (summed / valid_targets).backward()
        optimizer.step()

    run = captured(epoch, place) if form == "cuda_graph" else epoch

    def turn() -> float:
        synchronize(place)
        began = time.perf_counter()
        run()
        synchronize(place)
        return time.perf_counter() - began

    return turn


def captured(epoch: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The epoch as a CUDA graph, captured after three on a stream of its own."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            epoch()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        epoch()
    return graph.replay


def _graph(sizes: SyntheticCitation, density: float | None, *, all_labelled: bool) -> Graph:
    graph = load_graph(sizes, None)
    features, masks = graph.features, dict(graph.masks)
    if density is not None:
        random = torch.Generator().manual_seed(0)
        features = torch.rand(features.shape, generator=random)
        if density < 1.0:
            features *= torch.rand(features.shape, generator=random) < density
            features /= features.sum(1, keepdim=True).clamp(min=1e-12)
            features = features.to_sparse_csr()
    if all_labelled:
        masks["train"] = torch.ones(len(graph.labels), dtype=torch.bool)
    return Graph(graph.name, features, graph.labels, graph.edges, masks, graph.classes)


def _ours(
    form: str,
    settings: dict[str, Any],
    sizes: SyntheticCitation,
    graph: Graph,
    count: int,
    device: torch.device,
) -> tuple[nn.Module, list[tuple[Tensor | None, Scores]]]:
    """The layers, and of each chunk its targets and what computes its scores."""
    chosen = model_class(settings["name"])
    assert chosen is not None
    config: Any = chosen.model_validate(settings | {"implementation": form})
    options = BuildOptions(torch.float32)
    layers = nn.ModuleList(config.build(layer, options) for layer in config.outline(sizes.facts()))
    layers = layers.to(device)
    steps = itertools.count()

    def part(number: int, chunk: Any) -> tuple[Tensor, Scores]:
        x = feature_rows(graph.features, chunk.nodes, torch.float32).to(device)
        chunk = chunk.to(device)

        def scores() -> Tensor:
            out: Any = x
            context = Context(number, next(steps) // count, graph=chunk)
            for layer in layers:
                out = layer(out, context)
            result: Tensor = out
            return result

        return chunk.targets["train"].to(device), scores

    chunks = build_chunks(graph, count, "halo", config.layers).chunks
    return layers, [part(number, chunk) for number, chunk in enumerate(chunks)]


def _libraries(
    form: str, model: str, graph: Graph, device: torch.device
) -> tuple[nn.Module, list[tuple[Tensor | None, Scores]]]:
    features = graph.features.to_dense().to(device)
    hidden = 64 if model in ATTENTION else 256
    if form == "dgl":
        edges, build = _dgl_graph(graph, model).to(device), _dgl_layer
    else:
        edges, build = _edges(form, model, graph.edges.to(device), len(graph.labels)), _pyg_layer
        if form == "cuda_graph":
            # PyG would wait for the device to find the self-loops.
            build = functools.partial(_pyg_layer, add_self_loops=False)
    first = build(model, features.shape[1], hidden, last=False).to(device)
    second = build(model, hidden, graph.classes, last=True).to(device)
    # DGL's layers take the graph first, and GATConv drops features itself.
    call: Any = (lambda f, x: f(edges, x)) if form == "dgl" else (lambda f, x: f(x, edges))

    def scores() -> Tensor:
        x: Tensor = features
        if model in ATTENTION:
            x = functional.dropout(x, 0.6) if form != "dgl" else x
            x = functional.elu(call(first, x).flatten(1))
            x = functional.dropout(x, 0.6) if form != "dgl" else x
            out = call(second, x)
            out = out.mean(1) if form == "dgl" else out
        else:
            out = call(second, functional.dropout(functional.relu(call(first, x)), 0.5))
        return functional.log_softmax(out, dim=-1)

    called = torch.compile(scores, dynamic=False) if form == "compiled" else scores
    return nn.ModuleList((first, second)), [(None, called)]


def _edges(form: str, model: str, edges: Tensor, nodes: int) -> Any:
    """The edges as the layers of a form take them."""
    from torch_geometric import utils

    if form == "adj_t":
        return adjacency(edges, nodes)
    if form == "csr":
        return utils.to_torch_csr_tensor(edges.flip(0), size=(nodes, nodes))
    if form == "cuda_graph" and model in ATTENTION:
        return utils.add_remaining_self_loops(edges, num_nodes=nodes)[0]
    return edges


def perceptron(inputs: int, outputs: int) -> nn.Module:
    """GIN's two linear layers."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


def _pyg_layer(
    model: str, inputs: int, outputs: int, *, last: bool, add_self_loops: bool = True
) -> nn.Module:
    from torch_geometric import nn as pyg

    attention: dict[str, Any] = {"heads": 8, "concat": not last, "dropout": 0.6}
    attention["add_self_loops"] = add_self_loops
    channels = outputs if last else 8
    made: dict[str, Callable[[], Any]] = {
        "gat": lambda: pyg.GATConv(inputs, channels, **attention),
        "gatv2": lambda: pyg.GATv2Conv(inputs, channels, **attention),
        "gcn": lambda: pyg.GCNConv(inputs, outputs, cached=True),
        "sage": lambda: pyg.SAGEConv(inputs, outputs),
        "sage max": lambda: pyg.SAGEConv(inputs, outputs, aggr="max"),
        "graphconv": lambda: pyg.GraphConv(inputs, outputs),
        "gin": lambda: pyg.GINConv(perceptron(inputs, outputs)),
    }
    layer: nn.Module = made[model]()
    return layer


def _dgl_graph(graph: Graph, model: str) -> Any:
    library = import_dgl()
    source, target = graph.edges
    links = library.graph((source, target), num_nodes=len(graph.labels))
    return library.add_self_loop(links) if model in ("gat", "gcn") else links


def _dgl_layer(model: str, inputs: int, outputs: int, *, last: bool) -> nn.Module:
    import_dgl()
    from dgl.nn import pytorch as dgl

    gat = {"feat_drop": 0.6, "attn_drop": 0.6, "negative_slope": 0.2}
    made: dict[str, Callable[[], Any]] = {
        "gat": lambda: dgl.GATConv(inputs, outputs if last else 8, 8, **gat),
        "gcn": lambda: dgl.GraphConv(inputs, outputs),
        "sage": lambda: dgl.SAGEConv(inputs, outputs, "mean"),
        "graphconv": lambda: _SummedByDgl(inputs, outputs),
        "gin": lambda: dgl.GINConv(perceptron(inputs, outputs), "sum"),
    }
    layer: nn.Module = made[model]()
    return layer


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
            out: Tensor = (total if narrows else self.neighbours(total)) + self.root(x)
            return out
