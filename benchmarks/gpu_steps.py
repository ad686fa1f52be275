"""Training steps on one device, ours and PyG's, each to be called in a process of its own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Literal, TypedDict

import torch
from gnnhpc.engines.clock import Clock
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import vig_step
from benchmarks.isolated import peak_mib
from gnnhpc.data.graphs import load_graph
from gnnhpc.data.settings import SyntheticCitation
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.chunks import build_chunks
from gnnhpc.graphs.features import feature_rows
from gnnhpc.graphs.graph import IGNORED, Graph
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.models.context import Context
from gnnhpc.models.gat import Gat
from gnnhpc.models.model import BuildOptions, Model
from gnnhpc.models.model_registry import model_class

WARMUP = 3


class Taken(TypedDict):
    """Seconds of each step after warm-up, and the most MiB that the device held."""

    seconds: list[float]
    peak_mib: float


def vig(form: vig_step.Form, images: int, rounds: int, device: str) -> Taken:
    """Steps of `images` images: our layers, PyG's over them, or the study's own flat form."""
    return _taken(vig_step.contestant(form, images, device), rounds, torch.device(device))


def gat(
    form: Literal["fused", "pyg"], nodes: int, edges: int, features: int, rounds: int, device: str
) -> Taken:
    """Epochs of the two-layer GAT on a made-up graph: our layers, or PyG's as its example has them,
    on dense features.
    """
    graph = load_graph(SyntheticCitation(nodes=nodes, edges=edges, features=features), None)
    place = torch.device(device)
    build = _our_gat if form == "fused" else _pygs_gat
    return _taken(_epoch(*build(graph, place), _targets(graph, place)), rounds, place)


def _targets(graph: Graph, device: torch.device) -> Tensor:
    """Labels of nodes to train on, and IGNORED of the others."""
    return torch.where(graph.masks["train"], graph.labels, IGNORED).to(device)


def _epoch(
    model: nn.Module, log_probabilities: Callable[[], Tensor], targets: Tensor
) -> Callable[[], float]:
    """Takes one epoch, and gives its seconds."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    clock = Clock(targets.device)

    def epoch() -> float:
        clock.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        functional.nll_loss(log_probabilities(), targets, ignore_index=IGNORED).backward()
        optimizer.step()
        clock.synchronize()
        return time.perf_counter() - start

    return epoch


LAYERS: dict[str, dict[str, object]] = {
    "GATv2": {"name": "gatv2"},
    "GCN": {"name": "gcn"},
    "SAGE, mean": {"name": "sage"},
    "SAGE, max": {"name": "sage", "aggregator": "max"},
    "GIN": {"name": "gin"},
}


def layers(
    nodes: int, edges: int, features: int, rounds: int, device: str
) -> dict[str, dict[str, list[float]]]:
    """Seconds of epochs of each of `LAYERS` on a made-up graph with dense features, of our layers
    (`fused`) and of PyG's (`pyg`), which take turns.
    """
    graph = load_graph(SyntheticCitation(nodes=nodes, edges=edges, features=features), None)
    place = torch.device(device)
    x = graph.features.to_dense().to(place)
    targets = _targets(graph, place)
    (chunk,) = build_chunks(graph, 1, "halo", 2).chunks
    chunk = chunk.to(place)
    found: dict[str, dict[str, list[float]]] = {}
    for title, settings in LAYERS.items():
        epochs = {}
        for form in ("fused", "pyg"):
            config = model_class(str(settings["name"])).model_validate(
                settings | {"implementation": form}
            )
            epochs[form] = _epoch(*_built(config, graph, chunk, x), targets)
        found[title] = {form: [] for form in epochs}
        for number in range(WARMUP + rounds):
            for form, epoch in epochs.items():
                seconds = epoch()
                if number >= WARMUP:
                    found[title][form].append(seconds)
    return found


def _our_gat(graph: Graph, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    config = Gat()
    (chunk,) = build_chunks(graph, 1, "halo", config.layers).chunks
    x = feature_rows(graph.features, chunk.nodes, torch.float32).to(device)
    return _built(config, graph, chunk.to(device), x)


def _built(
    config: Model, graph: Graph, chunk: GraphChunk, x: Tensor | SparseRows
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A model's layers on the device of the chunk, and what computes them on its features."""
    facts = SyntheticCitation(
        nodes=len(graph.labels), edges=graph.edges.shape[1], features=graph.features.shape[1]
    ).facts()
    torch.manual_seed(0)
    options = BuildOptions(torch.float32)
    layers = nn.ModuleList(config.build(layer, options) for layer in config.outline(facts))
    model = layers.to(chunk.nodes.device)
    steps = itertools.count()

    def log_probabilities() -> Tensor:
        out, context = x, Context(step=next(steps), graph=chunk)
        for layer in model:
            out = layer(out, context)
        assert isinstance(out, Tensor)
        return out

    return model, log_probabilities


def _pygs_gat(graph: Graph, device: torch.device) -> tuple[nn.Module, Callable[[], Tensor]]:
    from torch_geometric.nn import GATConv

    features = graph.features.to_dense().to(device)
    edges = graph.edges.to(device)
    first = GATConv(features.shape[1], 8, heads=8, dropout=0.6)
    second = GATConv(64, graph.classes, heads=8, concat=False, dropout=0.6)
    model = nn.ModuleList((first, second)).to(device)

    def log_probabilities() -> Tensor:
        x = functional.dropout(features, 0.6)
        x = functional.elu(first(x, edges))
        x = functional.dropout(x, 0.6)
        return functional.log_softmax(second(x, edges), dim=-1)

    return model, log_probabilities


def _taken(turn: Callable[[], float], rounds: int, device: torch.device) -> Taken:
    for _ in range(WARMUP):
        turn()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = [turn() for _ in range(rounds)]
    if device.type == "cuda":
        return {"seconds": seconds, "peak_mib": torch.cuda.max_memory_allocated(device) / 2**20}
    return {"seconds": seconds, "peak_mib": peak_mib()}


def machine() -> dict[str, object]:
    """What there is to measure on; in a process of its own, which then lets go of the GPU."""
    from gnnhpc.core.layout import Layout
    from gnnhpc.distributed.device_facts import device_facts
    from gnnhpc.distributed.mesh import Mesh

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    facts = device_facts(Mesh(Layout(), 0, torch.device("cuda", 0))) if count else None
    return {
        "torch": torch.__version__,
        "gpus": count,
        "nccl": torch.distributed.is_nccl_available(),
        "facts": facts,
    }
