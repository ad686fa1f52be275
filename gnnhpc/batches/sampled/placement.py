"""Placement of a sampled graph: its features and edges are on the device where they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gnnhpc.batches.batch import BatchPlan, Inputs
from gnnhpc.batches.graph_batch import input_rows
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.device_copies import moved
from gnnhpc.graphs.graph import Graph, InEdges
from gnnhpc.kernels.sample_neighbors import FRESH, Memory

Where = Literal["host", "pinned", "device"]
"""The host's memory; pinned buffers there, which a device reads by itself; or the device."""
KEPT_FREE = 2
"""Divisor of a device's free memory that is taken at most; the rest is for the model, the
activations of the largest mini-batch and an evaluation."""


@dataclass(frozen=True)
class Placement:
    """The places from which mini-batches take features and edges."""

    features: Where = "host"
    graph: Where = "host"

    def metadata(self) -> dict[str, str]:
        return {"features_on": self.features, "graph_on": self.graph}


def choose(mesh: Mesh, features: Tensor, edges: InEdges | None) -> Placement:
    """The placement of this run's graph, the same for all ranks; a collective where they have GPUs.

    Each rank takes at most its share of one part in `KEPT_FREE` of what is free on its device. The
    graph goes there only with the features: threads that gather features on the host have time to
    sample. `edges` are None where a library samples: it reads its own copy in the host's memory.
    """
    if mesh.device.type == "cpu":
        return Placement()
    ranks_here = mesh.gather_objects(mesh.gpu).count(mesh.gpu)
    room = free_bytes(mesh.device) // KEPT_FREE // ranks_here
    if features.layout != torch.strided:
        return Placement()
    size = features.nbytes if mesh.is_first else 0
    both = size if edges is None else size + edges_bytes(edges)
    fits = mesh.gather_objects((size <= room, edges is not None and both <= room))
    features_fit, both_fit = (all(each) for each in zip(*fits, strict=True))
    if features_fit:
        return Placement("device", "device" if both_fit else "host")
    return Placement("host" if edges is None else "pinned")


def free_bytes(device: torch.device) -> int:
    """The free memory of a GPU."""
    return torch.cuda.mem_get_info(device)[0]


def edges_bytes(edges: InEdges) -> int:
    """What a sampler keeps on a device: the edges, and each node's degree, row, mark and the number
    of marks before it."""
    nodes = len(edges.indptr) - 1
    return edges.indptr.nbytes + edges.source.nbytes + nodes * (8 + 4 + 1 + 4)


class Features:
    """The features of a graph, copied to the device at once if they are placed there.

    They are stored and moved in their own precision and computed with in the run's.
    """

    def __init__(self, graph: Graph, plan: BatchPlan, where: Where) -> None:
        self._graph, self._plan, self.where = graph, plan, where
        self._on_device: Tensor | None = None
        if where == "device" and plan.mesh.is_first:
            self._on_device = graph.features.to(plan.mesh.device)

    def gathered(self, chunks: Sequence[GraphChunk], memory: Memory = FRESH) -> list[Inputs]:
        """The features of chunks, from any thread; chunks and features are where `where` says."""
        if self._on_device is not None:
            dtype = self._plan.dtype
            return [self._on_device.index_select(0, chunk.nodes).to(dtype) for chunk in chunks]
        if self.where == "host":
            return [input_rows(self._graph, chunk, self._plan) for chunk in chunks]
        return [self._copied(chunk.nodes, memory) for chunk in chunks]

    def _copied(self, nodes: Tensor, memory: Memory) -> Tensor:
        features = self._graph.features
        width = features.shape[1]
        out = memory.empty(len(nodes) * width, features.dtype).view(len(nodes), width)
        return torch.index_select(features, 0, nodes, out=out)

    def on_device(self, inputs: Sequence[Inputs]) -> list[Inputs | None]:
        """The model's inputs, of what was `gathered`."""
        dtype, device = self._plan.dtype, self._plan.mesh.device
        return [
            moved(x, device).to(dtype) if isinstance(x, Tensor) else x.to(device) for x in inputs
        ]
