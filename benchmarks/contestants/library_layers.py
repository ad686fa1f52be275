"""Training steps of PyG's and DGL's own programs, without a loader: a whole graph, and ViG.

The programs are as the libraries' examples have them: layers over the whole graph, with torch's
dropout on dense features. PyG takes its edges as `edge_index`, or as `adj_t` where torch-sparse is
installed, and keeps GCN's weights (`cached=True`). Other forms of PyG are its edge_index under
`torch.compile`, torch's CSR matrix as `csr`, and a CUDA graph over edges that have their self-loops
already. DGL has no GraphConv of Morris et al.; its sum over neighbours and a linear layer take its
place.

ViG's study keeps all images' nodes in one `[nodes, 3]` and calls PyG's GraphConv on one graph. Its
form here has the same layers and sizes as `gnnhpc.models.vig`, but torch's own BatchNorm and no
view of single images before the readout. The edges of the whole batch are ready before a step, as
they are from PyG's loader; with `adj_t` GraphConv multiplies by a sparse matrix and stores no
message for an edge.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.data.data_settings import SyntheticCitation
from gnnhpc.data.load_graph import load_graph
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.models.libraries import import_dgl
from gnnhpc.models.vig.model import Vig
from gnnhpc.models.vig.reference import grid_edges

ATTENTION = ("gat", "gatv2")
"""Models with dropout of features and of coefficients, and self-loops that layers add."""
IMAGE_SIZE, CLASSES = 32, 10
PLACES = {"cpu": torch.device("cpu"), "gpu": torch.device("cuda")}
Losses = Iterator[Callable[[], Tensor]]
"""Each takes a mini-batch; the function then computes its loss."""


def training_steps(
    network: nn.Module,
    losses: Losses,
    *,
    place: torch.device = PLACES["cpu"],
    steps: int = 1,
    captured: bool = False,
    **adam: Any,
) -> Callable[[], float]:
    """Seconds a step, of so many steps a turn: mini-batch, forward, loss, backward, Adam."""
    # Fused, as that of our runs.
    optimizer = torch.optim.Adam(network.parameters(), fused=True, capturable=captured, **adam)

    def step() -> None:
        loss = next(losses)
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    run = _captured(step) if captured else step
    wait = torch.cuda.synchronize if place.type == "cuda" else lambda: None

    def turn() -> float:
        wait()
        began = time.perf_counter()
        for _ in range(steps):
            run()
        wait()
        return (time.perf_counter() - began) / steps

    return turn


def _captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph, captured after three on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def whole_graph(
    form: str, model: dict[str, Any], data: dict[str, Any], device: str = "cpu"
) -> Callable[[], float]:
    """Seconds of an epoch of two layers on a made-up graph of these sizes."""
    graph, place = load_graph(SyntheticCitation(**data), None), PLACES[device]
    kind = "sage max" if model.get("aggregator") == "max" else model["name"]
    features = graph.features.to_dense().to(place)
    targets = torch.where(graph.masks["train"], graph.labels, IGNORED).to(place)
    edges = _edges(form, kind, graph, place)
    torch.manual_seed(0)
    hidden = 64 if kind in ATTENTION else 256
    first = _layer(form, kind, features.shape[1], hidden, last=False)
    second = _layer(form, kind, hidden, graph.classes, last=True)
    network = nn.ModuleList((first, second)).to(place)

    def call(layer: nn.Module, x: Tensor) -> Any:
        # DGL's layers take the graph first.
        return layer(edges, x) if form == "dgl" else layer(x, edges)

    def scores() -> Tensor:
        x = features
        if kind not in ATTENTION:
            x = functional.dropout(functional.relu(call(first, x)), 0.5)
            return functional.log_softmax(call(second, x), dim=-1)
        # DGL's GATConv drops features itself, and its heads are a dimension of their own.
        if form == "dgl":
            return functional.log_softmax(
                call(second, functional.elu(call(first, x).flatten(1))).mean(1), dim=-1
            )
        x = functional.elu(call(first, functional.dropout(x, 0.6)))
        return functional.log_softmax(call(second, functional.dropout(x, 0.6)), dim=-1)

    computed = torch.compile(scores, dynamic=False) if form == "compiled" else scores
    losses = itertools.repeat(
        lambda: functional.nll_loss(computed(), targets, ignore_index=IGNORED)
    )
    adam = {"lr": 0.005, "weight_decay": 5e-4, "captured": form == "cuda_graph"}
    turn = training_steps(network, losses, place=place, **adam)
    if form == "compiled":
        turn()
    return turn


def _edges(form: str, model: str, graph: Graph, place: torch.device) -> Any:
    """The edges as the layers of a form take them."""
    nodes = len(graph.labels)
    if form == "dgl":
        library = import_dgl()
        links = library.graph(tuple(graph.edges), num_nodes=nodes)
        return (library.add_self_loop(links) if model in ("gat", "gcn") else links).to(place)
    from torch_geometric import utils

    edges = graph.edges.to(place)
    if form == "adj_t":
        return adjacency(edges, nodes)
    if form == "csr":
        return utils.to_torch_csr_tensor(edges.flip(0), size=(nodes, nodes))
    if form == "cuda_graph" and model in ATTENTION:
        return utils.add_remaining_self_loops(edges, num_nodes=nodes)[0]
    return edges


def adjacency(edges: Tensor, nodes: int) -> Any:
    """The edges as torch-sparse's transposed adjacency."""
    from torch_sparse import SparseTensor

    source, target = edges
    return SparseTensor(row=target, col=source, sparse_sizes=(nodes, nodes)).fill_cache_()


def _layer(form: str, model: str, inputs: int, outputs: int, *, last: bool) -> nn.Module:
    attends = model in ATTENTION
    outputs = 8 if attends and not last else outputs
    if form == "dgl":
        return dgl_layer(model, inputs, outputs)
    options: dict[str, Any] = {"gcn": {"cached": True}, "sage max": {"aggr": "max"}}.get(model, {})
    if attends:
        options = {"heads": 8, "concat": not last, "dropout": 0.6}
        # A CUDA graph has its self-loops: PyG would wait for the device to find them.
        options["add_self_loops"] = form != "cuda_graph"
    return pyg_layer(model.partition(" ")[0], inputs, outputs, **options)


def pyg_layer(model: str, inputs: int, outputs: int, **options: Any) -> nn.Module:
    from torch_geometric import nn as pyg

    if model == "gin":
        return pyg.GINConv(_perceptron(inputs, outputs))
    names = {"gat": "GATConv", "gatv2": "GATv2Conv", "gcn": "GCNConv", "sage": "SAGEConv"}
    return getattr(pyg, names.get(model, "GraphConv"))(inputs, outputs, **options)


def dgl_layer(model: str, inputs: int, outputs: int) -> nn.Module:
    import_dgl()
    from dgl.nn import pytorch as dgl

    dropouts = {"feat_drop": 0.6, "attn_drop": 0.6}
    layers: dict[str, Callable[[], nn.Module]] = {
        "gat": lambda: dgl.GATConv(inputs, outputs, 8, **dropouts),
        "gcn": lambda: dgl.GraphConv(inputs, outputs, allow_zero_in_degree=True),
        "sage": lambda: dgl.SAGEConv(inputs, outputs, "mean"),
        "graphconv": lambda: _DglGraphConv(inputs, outputs),
        "gin": lambda: dgl.GINConv(_perceptron(inputs, outputs), "sum"),
    }
    return layers[model]()


def _perceptron(inputs: int, outputs: int) -> nn.Module:
    """GIN's two linear layers."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


class _DglGraphConv(nn.Module):
    """GraphConv of Morris et al."""

    def __init__(self, inputs: int, outputs: int) -> None:
        from dgl.nn.pytorch import GraphConv

        super().__init__()
        self.neighbours = GraphConv(inputs, outputs, norm="none", allow_zero_in_degree=True)
        self.root = nn.Linear(inputs, outputs, bias=False)

    def forward(self, links: Any, x: Tensor) -> Tensor:
        out: Tensor = self.neighbours(links, x) + self.root(x)
        return out


def vig(form: str, images: int, device: str = "cpu") -> Callable[[], float]:
    """Seconds of a training step of the study's form of ViG on made-up images."""
    place, nodes = PLACES[device], images * IMAGE_SIZE**2
    model = FlatVig(Vig(), CLASSES).to(place)
    edges = grid_edges((IMAGE_SIZE, IMAGE_SIZE), images, place)
    edges = edges if form == "edge_index" else adjacency(edges, nodes)
    pixels = torch.rand(nodes, 3, device=place)
    image = torch.arange(nodes, device=place) // IMAGE_SIZE**2
    labels = torch.arange(images, device=place) % CLASSES

    def loss() -> Tensor:
        return functional.cross_entropy(model(pixels, edges, image), labels)

    return training_steps(model, itertools.repeat(loss), place=place)


class FlatBlock(nn.Module):
    """A Grapher, then an FFN, each added to its input."""

    def __init__(self, sizes: Vig) -> None:
        from torch_geometric.nn import GraphConv

        super().__init__()
        grapher, ffn = sizes.grapher_width, sizes.ffn_width
        self.grapher_in = nn.Sequential(nn.Linear(3, grapher), nn.BatchNorm1d(grapher))
        self.conv = GraphConv(grapher, grapher, aggr="add")
        self.grapher_out = nn.Sequential(nn.Linear(grapher, 3), nn.BatchNorm1d(3))
        self.ffn = nn.Sequential(
            *(nn.Linear(3, ffn), nn.BatchNorm1d(ffn), nn.GELU()),
            *(nn.Linear(ffn, 3), nn.BatchNorm1d(3)),
        )

    def forward(self, x: Tensor, edges: Any) -> Tensor:
        x = x + self.grapher_out(functional.gelu(self.conv(self.grapher_in(x), edges)))
        out: Tensor = x + self.ffn(x)
        return out


class FlatVig(nn.Module):
    """Pixels `[images * nodes, 3]` to logits `[images, classes]`."""

    def __init__(self, sizes: Vig, classes: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(FlatBlock(sizes) for _ in range(sizes.blocks))
        self.readout = nn.Sequential(
            *(nn.Linear(3, sizes.readout_width), nn.GELU()),
            nn.Linear(sizes.readout_width, classes),
        )

    def forward(self, x: Tensor, edges: Any, image: Tensor) -> Tensor:
        """`image` int64 [nodes] is the image of each node."""
        from torch_geometric.nn import global_add_pool

        for block in self.blocks:
            x = block(x, edges)
        logits: Tensor = self.readout(global_add_pool(x, image))
        return logits
