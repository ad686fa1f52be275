"""The part of an experiment's data that an engine parity check computes on.

Layers, layout, schedule, engine, chunks, sampler and task stay as they are. Micro-batches have few
images, or the top left corner of each; a large graph becomes a neighbourhood of nodes with valid
targets; of many small graphs some of each split are kept. The reference then takes about a second.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs, check_outline
from gnnhpc.data.load_graph import load_graph, load_graph_set
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.node_features import feature_rows
from gnnhpc.models.custom_model import CustomModel

FLOPS, VERIFIED_FLOPS = 3e9, 48e9
"""Operations of the reference on images over all steps, in a run and in `gnnhpc verify`: with the
ranks' own steps 3e9 are about half a second of one core in float64."""
RUN_SHARE = 0.0001
"""Images may take this share of the run's own operations, if that is more: the reference takes
about a hundred times as long for an operation as the fused layers do."""
NODES, VERIFIED_NODES = 400, 3_000
"""Nodes of a graph, if there are as many and they suffice for all chunks."""
GRAPHS, VERIFIED_GRAPHS = 24, 150
"""Small graphs of each split, in the same way."""
STEPS = 2
IMAGES, CUSTOM_IMAGES = 2, 4
"""Images of a micro-batch: a BatchNorm of a custom model needs more than two to have a gradient."""
_SIDES = (16, 8)
_UNIT_FLOPS = 300.0
"""The cost of a hidden unit beside its products, such as its activation and BatchNorm."""


@dataclass(frozen=True)
class ParitySlice:
    """An experiment of a few small steps in float64, and the part of the data that it sees."""

    experiment: Experiment
    layer_specs: LayerSpecs
    first: int = 0
    """The first training step; the last one is `experiment.train_steps` - 1."""
    side: int | None = None
    """Pixels of an image's side that are kept; None for all."""
    nodes: int | None = None
    """Nodes of the graph that are kept; None for all."""
    graphs: int | None = None
    """Small graphs of each split that are kept; None for all."""
    extent: str = ""
    """The part of the data in words; empty for all of it."""

    @property
    def steps(self) -> int:
        return self.experiment.train_steps - self.first

    def graph(self, root: Path | None) -> Graph | GraphSet | None:
        """What is kept of the graph or of the set of graphs; None for images."""
        data = self.experiment.data
        match data.facts().kind:
            case "graph":
                graph = load_graph(data, root)
                return graph if self.nodes is None else labelled_neighborhood(graph, self.nodes)
            case "graphs":
                graphs = load_graph_set(data, root)
                return graphs if self.graphs is None else some_of_each_split(graphs, self.graphs)
        return None


def parity_slice(
    experiment: Experiment, *, first: int = 0, steps: int = STEPS, larger: bool = False
) -> ParitySlice:
    """The slice of a check whose first training step has the number `first`; `larger` to verify."""
    small = experiment.model_copy(
        update={
            "dtype": "float64",
            "train_steps": first + steps,
            "test_steps": min(experiment.test_steps, 1),
            "test_every": None,
            "warmup_steps": 0,
            "save_every": None,
            "spans": False,
            # Hooks on layers see nothing of a step that is replayed.
            "cuda_graph": "off",
        }
    )
    specs = outline(experiment)
    match experiment.data.facts().kind:
        case "images":
            images = experiment.train_steps * (experiment.batch_size or 1)
            run_flops = 3.0 * images * experiment.layout.replicas * _image_flops(specs)
            flops = max(VERIFIED_FLOPS if larger else FLOPS, RUN_SHARE * run_flops)
            found = _image_slice(small, specs, flops, steps)
        case "graph":
            found = _graph_slice(small, specs, VERIFIED_NODES if larger else NODES)
        case "graphs":
            found = _graph_set_slice(small, specs, VERIFIED_GRAPHS if larger else GRAPHS)
    return dataclasses.replace(found, first=first)


def _image_slice(small: Experiment, specs: LayerSpecs, flops: float, steps: int) -> ParitySlice:
    """The largest slice whose reference takes at most `flops`; the smallest one where none does."""
    slices, passes = list(_image_slices(small, specs)), (3 * steps + 1) * small.layout.replicas
    for found in slices:
        images = passes * (found.experiment.batch_size or 0)
        if images * _image_flops(found.layer_specs) <= flops:
            break
    return found


def _image_slices(small: Experiment, specs: LayerSpecs) -> Iterator[ParitySlice]:
    """Slices from the largest to the smallest."""
    facts = small.data.facts()
    full = (small.batch_size or small.microbatches) // small.microbatches
    custom = isinstance(small.model, CustomModel)
    rows = min(CUSTOM_IMAGES if custom else IMAGES, full)
    # The interleaved schedule takes multiples of the stages.
    more = small.layout.stages if small.schedule == "interleaved" else 1
    fewer = min(small.microbatches, small.layout.stages + more)
    # A custom model may take images of one size only.
    sides = [None, *(side for side in _SIDES if side < facts.image_size and not custom)]
    sizes = [(small.microbatches, rows), (small.microbatches, 1), (fewer, 1)]
    choices = [(count, each, side) for count, each in sizes for side in sides]
    for microbatches, each, side in choices:
        kept, extent = specs, f"{each} of {full} images a micro-batch"
        if microbatches < small.microbatches:
            extent += f", {microbatches} of {small.microbatches} micro-batches"
        if side is not None:
            smaller = dataclasses.replace(facts, image_size=side)
            where = f"model {small.model.name}"
            kept = check_outline(small.model.outline(smaller), smaller, where)
            extent += f", {side} x {side} pixels of each"
        update = {"batch_size": microbatches * each, "microbatches": microbatches}
        yield ParitySlice(small.model_copy(update=update), kept, side=side, extent=extent)


def _image_flops(specs: Sequence[LayerSpec]) -> float:
    """Operations of one image's forward; each layer's parameters are used at each of its nodes."""
    counts = [(spec.parameters or math.prod(spec.shape), spec.inputs[0]) for spec in specs]
    return sum((2.0 * count + _UNIT_FLOPS * math.sqrt(count)) * nodes for count, nodes in counts)


def _graph_slice(small: Experiment, specs: LayerSpecs, nodes: int) -> ParitySlice:
    facts = small.data.facts()
    # A twelfth of the nodes that are kept are to train on.
    nodes = max(nodes, (24 if small.sampling is not None else 8) * small.total_chunks)
    if nodes >= facts.nodes:
        return ParitySlice(small, specs)
    if small.batch_size is not None:
        # Few nodes have few links, and a larger share of them is evaluated.
        share = 12 if small.task is None else 24
        update: dict[str, Any] = {
            "batch_size": min(small.batch_size, nodes // share // small.layout.replicas)
        }
        if small.task is not None:
            few = {"hits": 1, "val_share": 0.25, "test_share": 0.25}
            update["task"] = small.task.model_copy(update=few)
        small = small.model_copy(update=update)
    return ParitySlice(small, specs, nodes=nodes, extent=f"{nodes} of {facts.nodes} nodes")


def _graph_set_slice(small: Experiment, specs: LayerSpecs, graphs: int) -> ParitySlice:
    facts = small.data.facts()
    graphs = max(graphs, small.total_chunks)
    if graphs >= max(facts.train, facts.val, facts.test):
        return ParitySlice(small, specs)
    graphs = min(graphs, facts.train)
    batch_size = min(small.batch_size or 1, graphs // small.layout.replicas)
    fewer = small.model_copy(update={"batch_size": batch_size})
    extent = f"{graphs} of {facts.train} graphs to train on, and at most as many of other splits"
    return ParitySlice(fewer, specs, graphs=graphs, extent=extent)


def labelled_neighborhood(graph: Graph, count: int) -> Graph:
    """About `count` nodes with the edges between them, numbered anew in the same order.

    Some nodes of each split come first, then their neighbours as far as there is room.
    """
    seeds = [
        mask.nonzero().flatten()[: max(1, count // (4 * len(graph.masks)))]
        for mask in graph.masks.values()
    ]
    chosen = torch.zeros(graph.nodes, dtype=torch.bool)
    chosen[torch.cat(seeds)] = True
    near = graph.edges[0][chosen[graph.edges[1]]].unique()
    for more in (near, torch.arange(graph.nodes)):
        new = more[~chosen[more]]
        chosen[new[: max(0, count - int(chosen.sum()))]] = True
    features, edges, kept = _among(graph, chosen)
    return dataclasses.replace(
        graph,
        features=features,
        edges=edges,
        labels=graph.labels[chosen],
        masks={split: mask[chosen] for split, mask in graph.masks.items()},
        stored_in_edges=None,
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[kept],
    )


def some_of_each_split(graphs: GraphSet, count: int) -> GraphSet:
    """The first `count` graphs of each split, in the same order."""
    kept = torch.zeros(len(graphs), dtype=torch.bool)
    kept[torch.cat([mask.nonzero().flatten()[:count] for mask in graphs.masks.values()])] = True
    sizes = graphs.first.diff()
    features, edges, _ = _among(graphs, torch.repeat_interleave(kept, sizes))
    return dataclasses.replace(
        graphs,
        features=features,
        edges=edges,
        first=torch.cat((torch.zeros(1, dtype=torch.int64), sizes[kept].cumsum(0))),
        labels=graphs.labels[kept],
        masks={split: mask[kept] for split, mask in graphs.masks.items()},
    )


def _among(data: Graph | GraphSet, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features of the chosen nodes, bool [nodes], the edges between them, numbered anew, and which
    edges they are, bool [E]."""
    kept = chosen[data.edges].all(0)
    edges = (chosen.cumsum(0) - 1)[data.edges[:, kept]]
    rows = feature_rows(data.features, chosen.nonzero().flatten(), data.features.dtype)
    return rows if isinstance(rows, Tensor) else rows.to_csr(), edges, kept
