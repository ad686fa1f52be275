"""This rank among the ranks of its cell: the process groups of its pipeline and its replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.channels import Peer

Direction = Literal["forward", "backward"]
"""Activations travel forward, gradients backward."""


@dataclass(frozen=True)
class Mesh:
    """One rank's place in its layout, and its process groups; none where it is the only rank."""

    layout: Layout
    rank: int
    device: torch.device
    pipeline: dist.ProcessGroup | None = None
    """This replica's stages."""
    replicas: dist.ProcessGroup | None = None
    """The ranks that hold this stage, one a replica."""
    control: dist.ProcessGroup | None = None
    """All ranks, on CPU: barriers, and small values gathered for the records."""
    store: Any = None
    """The watchdog's own connection to the ranks' store (torch gives it no public type)."""
    links: Mapping[tuple[Direction, int], dist.ProcessGroup] = field(default_factory=dict)
    """A group of two for each neighbour and direction with NCCL; else empty."""
    staged: bool = False
    """Whether tensors of a GPU travel by gloo, through the host's memory."""
    gpu: str | None = None
    """Names this rank's GPU, or GPUs; None on a CPU."""
    more_devices: tuple[torch.device, ...] = ()
    """Devices of further stages, where a process holds several."""
    ends_at: int | None = None
    """Which stage holds the model's last layers; None for the one with the highest number."""
    peers: Mapping[int, Peer] = field(default_factory=dict)
    """The ranks of this pipeline, on CPUs of this node, with which memory can be shared."""

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Devices of this process's stages, or the one that they share."""
        return (self.device, *self.more_devices)

    @property
    def replica(self) -> int:
        return self.layout.replica_of(self.rank)

    @property
    def stage(self) -> int:
        return self.layout.stage_of(self.rank)

    @property
    def is_first(self) -> bool:
        """Whether the model's first layers are here, and so its inputs."""
        return self.stage == 0

    @property
    def has_loss(self) -> bool:
        """Whether the model's last layers are here, and so its loss."""
        return self.stage == self.loss_stage

    @property
    def loss_stage(self) -> int:
        """That holds the model's last layers."""
        return self.layout.stages - 1 if self.ends_at is None else self.ends_at

    def link(self, direction: Direction, peer: int) -> dist.ProcessGroup:
        """The group in which tensors of one direction travel between here and a neighbour."""
        group = self.links.get((direction, peer)) or self.pipeline
        assert group is not None, "a pipeline of one stage has no links"
        return group

    @property
    def transfers(self) -> str | None:
        """How process groups send tensors between ranks; None for a rank that is alone."""
        if self.control is None:
            return None
        if self.staged:
            return "gloo through host memory"
        return "nccl" if self.device.type == "cuda" else "gloo"

    def sum_over_replicas(self, tensor: torch.Tensor) -> None:
        """Add up `tensor` over the replicas of this stage, in place; waits for all of them."""
        if self.replicas is None:
            return
        travels = tensor.cpu() if self.staged else tensor
        dist.all_reduce(travels, group=self.replicas)
        if self.staged:
            tensor.copy_(travels)

    def begin_sum_over_replicas(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Begin to add up a CPU's `tensor` over this stage's replicas, of which there are several,
        in place; what is returned waits for all of them."""
        work = dist.all_reduce(tensor, group=self.replicas, async_op=True)
        return lambda: work.wait() and None

    def barrier(self) -> None:
        if self.control is not None:
            dist.barrier(group=self.control)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Every rank's `values` [k] (float64), as [world_size, k]; also a barrier."""
        if self.control is None:
            return values.unsqueeze(0)
        out = values.new_empty(self.layout.world_size, values.numel())
        dist.all_gather(list(out), values, group=self.control)
        return out

    def gather_on_first(self, value: Any) -> list[Any]:
        """Every rank's `value`, which may be large, by rank on rank 0; nothing on the others."""
        if self.control is None:
            return [value]
        out: list[Any] | None = [None] * self.layout.world_size if self.rank == 0 else None
        dist.gather_object(value, out, dst=0, group=self.control)
        return out or []

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's `value`, a small object, by rank."""
        if self.control is None:
            return [value]
        out: list[Any] = [None] * self.layout.world_size
        dist.all_gather_object(out, value, group=self.control)
        return out
