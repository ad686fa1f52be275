"""This rank among the ranks of its cell: the process groups of its pipeline and its replicas."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.addresses import check_interface
from gnnhpc.distributed.devices import check_sharing, exchange, own_device, uses_nccl
from gnnhpc.distributed.environment import Environment
from gnnhpc.distributed.gloo_groups import one_thread_gloo
from gnnhpc.distributed.rendezvous import StorePortServer
from gnnhpc.distributed.shared_memory import Peer, find_peers
from gnnhpc.distributed.store import connect

COLLECTIVE_S = 1800.0
Direction = Literal["forward", "backward"]
"""Activations travel forward, gradients backward."""
OfSum = Literal["begins", "waits", "ends"]
"""Of a sum over replicas: this rank gives its own values, waits for the others, and has the sum;
where it waits at once it is told of no beginning."""


@dataclass(frozen=True)
class Mesh:
    """One rank's place in its layout, and its process groups; none where it is the only rank."""

    layout: Layout
    rank: int
    device: torch.device
    forward: dist.ProcessGroup | None = None
    """This replica's stages; activations travel here."""
    backward: dist.ProcessGroup | None = None
    """The same ranks; gradients travel here, so the two directions never wait for each other."""
    replicas: dist.ProcessGroup | None = None
    """The ranks that hold this stage, one a replica."""
    control: dist.ProcessGroup | None = None
    """All ranks, on CPU: barriers, and small values gathered for the records."""
    store: Any = None
    """The watchdog's own connection to the ranks' store (torch gives it no public type)."""
    port_server: StorePortServer | None = None
    """On rank 0, tells the other ranks where the store is; none where the launcher sets it."""

    links: Mapping[tuple[Direction, int], dist.ProcessGroup] = field(default_factory=dict)
    """With NCCL a group of two for each neighbour and direction; else empty."""
    staged: bool = False
    """Whether tensors of a GPU travel by gloo, through the host's memory."""
    gpu: str | None = None
    """Names this rank's GPU, or GPUs; None on a CPU."""
    more_devices: tuple[torch.device, ...] = ()
    """Of a process that holds several stages, those after the first one's."""
    ends_at: int | None = None
    """Which stage holds the model's last layers; None for the one with the highest number."""
    peers: Mapping[int, Peer] = field(default_factory=dict)
    """The ranks of this pipeline, on CPUs of this node, with which memory can be shared."""
    met: list[int] = field(default_factory=lambda: [0])
    """How often this rank has met all others at a barrier."""
    on_sum: list[Callable[[OfSum, int], None]] = field(default_factory=list)
    """Told of each sum over replicas, just before and after, and of how many bytes it begins with;
    by the thread that does so."""

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Of this process's stages, or the one that they share."""
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
        group = self.links.get((direction, peer))
        group = group or (self.forward if direction == "forward" else self.backward)
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
        self.tell_sum("waits", tensor)
        dist.all_reduce(travels, group=self.replicas)
        self.tell_sum("ends")
        if self.staged:
            tensor.copy_(travels)

    def begin_sum_over_replicas(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Begin to add up a CPU's `tensor` over this stage's replicas, of which there are several,
        in place; what is returned waits for all of them."""
        self.tell_sum("begins", tensor)
        work = dist.all_reduce(tensor, group=self.replicas, async_op=True)

        def wait() -> None:
            self.tell_sum("waits")
            work.wait()
            self.tell_sum("ends")

        return wait

    def tell_sum(self, what: OfSum, tensor: torch.Tensor | None = None) -> None:
        """Of one over replicas, to all who want to know; `tensor` is what it begins with."""
        for told in self.on_sum:
            told(what, 0 if tensor is None else tensor.nbytes)

    def barrier(self) -> None:
        if self.control is not None:
            dist.barrier(group=self.control)
        self.met[0] += 1

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


def join(
    environment: Environment,
    layout: Layout,
    device: torch.device,
    secret_file: Path | None = None,
    more_devices: Sequence[torch.device] = (),
    ends_at: int | None = None,
) -> Mesh:
    """Connect to the other ranks and make the process groups.

    `more_devices` are those of the stages after this process's first, if each has its own, and
    `ends_at` the stage that holds the model's last layers, if it is not the last one.
    `secret_file` is where ranks keep what they know each other by, if the launcher sets no port.
    Raises InputError for a host name that does not resolve, for a secret that is not to be had and
    for ranks that share a GPU without being told to, and GnnhpcError if the other ranks do not come
    in time.
    """
    more = tuple(more_devices)
    mine = own_device(environment, (device, *more))
    if layout.world_size == 1:
        return Mesh(layout, 0, device, gpu=mine.gpu, more_devices=more)
    timeout = datetime.timedelta(seconds=COLLECTIVE_S)
    check_interface()
    store, port_server = connect(environment, secret_file)
    nccl = False
    if device.type == "cuda":
        torch.cuda.set_device(device)
        everyone = exchange(store, mine, layout.world_size)
        check_sharing(everyone)
        nccl = uses_nccl(everyone)
    peers: dict[int, Peer] = {}
    if device.type == "cpu" and layout.stages > 1:
        pipeline = layout.pipeline_ranks(layout.replica_of(environment.rank))
        peers = find_peers(store, environment, pipeline)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if nccl else one_thread_gloo(),
        store=store,
        rank=environment.rank,
        world_size=environment.world_size,
        timeout=timeout,
    )
    forward = backward = replicas = None
    if layout.stages > 1:
        for replica in range(layout.replicas):
            pipeline = layout.pipeline_ranks(replica)
            groups = [dist.new_group(pipeline, timeout=timeout) for _ in range(2)]
            if replica == layout.replica_of(environment.rank):
                forward, backward = groups
    if layout.replicas > 1:
        for stage in range(layout.stages):
            group = dist.new_group(layout.replica_ranks(stage), timeout=timeout)
            if stage == layout.stage_of(environment.rank):
                replicas = group
    links = _link_groups(layout, environment.rank, timeout) if nccl else {}
    control = dist.new_group(backend="gloo" if nccl else None, timeout=timeout)
    mesh = Mesh(
        layout=layout,
        rank=environment.rank,
        device=device,
        forward=forward,
        backward=backward,
        replicas=replicas,
        control=control,
        store=store.clone(),
        port_server=port_server,
        links=links,
        staged=device.type == "cuda" and not nccl,
        gpu=mine.gpu,
        more_devices=more,
        ends_at=ends_at,
        peers=peers,
    )
    if nccl:
        _connect(mesh)
    return mesh


def _neighbours(layout: Layout) -> Iterator[tuple[Direction, int, int]]:
    """Every link of every replica: its direction, the process that sends, the one that receives."""
    for replica in range(layout.replicas):
        for before, after in itertools.pairwise(layout.pipeline_ranks(replica)):
            yield "forward", before, after
            yield "backward", after, before


def _link_groups(
    layout: Layout, rank: int, timeout: datetime.timedelta
) -> dict[tuple[Direction, int], dist.ProcessGroup]:
    """A group for each link: NCCL keeps the order of a communicator's transfers, so that a receive
    which waits would hold up a send of the same one. Every rank makes all groups, as torch wants.
    """
    links: dict[tuple[Direction, int], dist.ProcessGroup] = {}
    for direction, sender, receiver in _neighbours(layout):
        group = dist.new_group(sorted((sender, receiver)), timeout=timeout)
        if rank in (sender, receiver):
            links[direction, receiver if rank == sender else sender] = group
    return links


def _connect(mesh: Mesh) -> None:
    """Send one number over each link, and reduce one.

    NCCL makes a communicator at its first use, and there waits for the peer to come: in an order
    that all ranks have, before any of them waits for something else.
    """
    number = torch.zeros(1, device=mesh.device)
    for direction, sender, receiver in _neighbours(mesh.layout):
        if mesh.rank == sender:
            dist.send(number, dst=receiver, group=mesh.link(direction, receiver))
        elif mesh.rank == receiver:
            dist.recv(number, src=sender, group=mesh.link(direction, sender))
    mesh.sum_over_replicas(number)
    if mesh.device.type == "cuda":
        torch.cuda.synchronize(mesh.device)


def leave(mesh: Mesh) -> None:
    """Close the groups; safe to call on a rank that is alone."""
    if mesh.port_server is not None:
        mesh.port_server.close()
    if dist.is_initialized():
        dist.destroy_process_group()
