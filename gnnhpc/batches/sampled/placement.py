"""Where a sampled graph lies: its features and its edges on the device where they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.graphs.in_edges import InEdges

Where = Literal["host", "pinned", "device"]
"""In the host's memory, there and through buffers that a device reads by itself, or on it."""
KEPT_FREE = 2
"""Of what is free on a device all but one part in so many stays so: for the model, for the
activations of the largest mini-batch, and for what an evaluation needs."""


@dataclass(frozen=True)
class Placement:
    """Where mini-batches take features and edges from."""

    features: Where = "host"
    graph: Where = "host"

    def facts(self) -> dict[str, str]:
        """As a record tells it; older ones do not."""
        return {"features_on": self.features, "graph_on": self.graph}


@dataclass(frozen=True)
class Room:
    """What one rank would put on its device, in bytes, and what is free there."""

    device: str | None
    """Its name, which ranks that share it have in common."""
    free: int
    features: int
    """0 where the rank takes none, as on a later stage."""
    graph: int


def placed(rooms: Sequence[Room], *, features: bool, graph: bool) -> Placement:
    """What all ranks put on their devices, so that one record tells it of all.

    What ranks put on one device together is at most one part in `KEPT_FREE` of what is free there.
    `features` and `graph` say what may be there at all. The graph follows the features alone: while
    threads gather features on the host they can as well draw.
    """
    if not features or not _fit(rooms, [room.features for room in rooms]):
        return Placement()
    both = [room.features + room.graph for room in rooms]
    return Placement("device", "device" if graph and _fit(rooms, both) else "host")


def _fit(rooms: Sequence[Room], wanted: Sequence[int]) -> bool:
    for one in rooms:
        there = [(r, size) for r, size in zip(rooms, wanted, strict=True) if r.device == one.device]
        if sum(size for _, size in there) > min(r.free for r, _ in there) // KEPT_FREE:
            return False
    return True


def choose(mesh: Mesh, features: Tensor, edges: InEdges | None) -> Placement:
    """Where this run's ranks put a graph; a collective where they have GPUs.

    `edges` are none where a library draws: it reads its own in the host's memory.
    """
    if mesh.device.type == "cpu":
        return Placement()
    dense = features.layout == torch.strided
    mine = Room(
        device=mesh.gpu,
        free=free_bytes(mesh.device),
        features=features.nbytes if dense and mesh.is_first else 0,
        graph=0 if edges is None else edges_bytes(edges),
    )
    ours = edges is not None
    found = placed(mesh.gather_objects(mine), features=dense, graph=ours)
    pinned = found.features == "host" and dense and ours
    return Placement("pinned") if pinned else found


def free_bytes(device: torch.device) -> int:
    """Of a GPU, whoever uses it."""
    return torch.cuda.mem_get_info(device)[0]


def edges_bytes(edges: InEdges) -> int:
    """What a sampler keeps on a device: the edges, and of each node its degree and its row."""
    nodes = len(edges.indptr) - 1
    return edges.indptr.nbytes + edges.source.nbytes + nodes * (8 + 4)
