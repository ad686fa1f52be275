"""How the ranks of a cell find one another, and make the process groups of their mesh.

They meet in torch's TCPStore. Under torchrun it is at the address and port that torchrun sets.
Otherwise rank 0 serves it at a port that all ranks derive from the job.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import itertools
import json
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.channels import Peer, find_peers
from gnnhpc.distributed.devices import RankDevice, nccl_connects, rank_device
from gnnhpc.distributed.environment import Environment
from gnnhpc.distributed.mesh import Direction, Mesh

RENDEZVOUS_S = 120.0
LEAVE_S = 30.0
COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=30)
_FIRST_PORT, _LAST_PORT = 20_000, 32_000
"""Below the range of outgoing connections."""
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
_BACKEND = "one-thread-gloo"


def join(
    environment: Environment,
    layout: Layout,
    device: torch.device,
    more_devices: Sequence[torch.device] = (),
    ends_at: int | None = None,
) -> Mesh:
    """Connect to the other ranks and make the process groups.

    `more_devices` and `ends_at` are those of the mesh. Raises InputError for a host name that does
    not resolve, an interface that is not there and ranks that share a GPU by mistake, and
    GnnhpcError if the other ranks do not come in time.
    """
    more, rank = tuple(more_devices), environment.rank
    mine = rank_device(environment, (device, *more))
    if layout.world_size == 1:
        return Mesh(layout, 0, device, gpu=mine.gpu, more_devices=more)
    named_interfaces()
    store = connect(environment)

    def exchange(key: str, value: Any) -> list[Any]:
        """Every rank's value, by rank, through the store: no process group exists yet."""
        store.set(f"{key}/{rank}", json.dumps(value))
        return [json.loads(store.get(f"{key}/{each}")) for each in range(layout.world_size)]

    nccl, peers = False, dict[int, Peer]()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        nccl = nccl_connects([RankDevice(**each) for each in exchange("device", asdict(mine))])
    elif layout.stages > 1:
        peers = find_peers(exchange, environment, layout.pipeline_ranks(layout.replica_of(rank)))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if nccl else one_thread_gloo(),
        store=store,
        rank=rank,
        world_size=environment.world_size,
        timeout=COLLECTIVE_TIMEOUT,
    )
    pipelines = [layout.pipeline_ranks(each) for each in range(layout.replicas)]
    copies = [layout.replica_ranks(each) for each in range(layout.stages)]
    mesh = Mesh(
        layout=layout,
        rank=rank,
        device=device,
        links=_link_groups(layout, rank) if nccl else {},
        pipeline=_group_of(pipelines),
        replicas=_group_of(copies),
        control=dist.new_group(backend="gloo" if nccl else None, timeout=COLLECTIVE_TIMEOUT),
        store=store.clone(),
        staged=device.type == "cuda" and not nccl,
        gpu=mine.gpu,
        more_devices=more,
        ends_at=ends_at,
        peers=peers,
    )
    if nccl:
        _connect_links(mesh)
    return mesh


def _group_of(sets: list[list[int]]) -> dist.ProcessGroup | None:
    """The group of the set of ranks that this one is in; None for a rank that is alone in its
    set."""
    if len(sets[0]) == 1:
        return None
    mine: dist.ProcessGroup | None
    mine, _ = dist.new_subgroups_by_enumeration(sets, timeout=COLLECTIVE_TIMEOUT)
    return mine


def leave(mesh: Mesh) -> None:
    """Close the groups; rank 0, which serves the store, returns when all ranks have closed theirs.

    A rank that fails in between keeps rank 0 for `LEAVE_S` seconds at most.
    """
    if mesh.store is None:
        return
    dist.destroy_process_group()
    if mesh.rank > 0:
        mesh.store.set(f"left/{mesh.rank}", "")
        return
    others = [f"left/{rank}" for rank in range(1, mesh.layout.world_size)]
    with contextlib.suppress(RuntimeError):
        mesh.store.wait(others, datetime.timedelta(seconds=LEAVE_S))


def connect(environment: Environment) -> Any:
    """The store in which all ranks meet (torch gives it no public type).

    Raises InputError for a host name that does not resolve, and GnnhpcError if rank 0 is not found
    in time or its port is taken.
    """
    host, port = _resolved(environment.first_host), environment.port
    # torchrun's agent may serve it.
    serves = environment.rank == 0 and "TORCHELASTIC_USE_AGENT_STORE" not in os.environ
    if port is None:
        port, serves = derived_port(environment.job_key), environment.rank == 0
    timeout = datetime.timedelta(seconds=RENDEZVOUS_S)
    try:
        store = dist.TCPStore(host, port, None, serves, timeout, wait_for_workers=False)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        words = f"rendezvous at {host}, port {port}: {reason}"
        raise GnnhpcError(f"{words}; MASTER_PORT sets another port") from None
    return dist.PrefixStore(f"gnnhpc/{environment.job_key}", store)


def derived_port(job_key: str) -> int:
    """The port of a job: the same on every rank, and another one for each job and requeue."""
    number = int.from_bytes(hashlib.sha256(job_key.encode()).digest()[:4], "big")
    return _FIRST_PORT + number % (_LAST_PORT - _FIRST_PORT)


def _resolved(name: str) -> str:
    """A host name's IPv4 address, or its IPv6 address where it has no other.

    Raises InputError with the name, at once, if it has none.
    """
    try:
        addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InputError(
            "environment",
            "MASTER_ADDR",
            f"{name!r}, which does not resolve on {socket.gethostname()}",
            "a name every node resolves (set MASTER_ADDR), or the interface of the site file",
        ) from None
    families = [socket.AF_INET, socket.AF_INET6]
    return str(min(addresses, key=lambda each: families.index(each[0]))[4][0])


def named_interfaces() -> list[str]:
    """The network interfaces that $GLOO_SOCKET_IFNAME names for gloo, if any.

    Raises InputError for one that this node does not have.
    """
    named = [name for name in os.environ.get(INTERFACE_VARIABLE, "").split(",") if name]
    there = [name for _, name in socket.if_nameindex()]
    for name in named:
        if name not in there:
            raise InputError("environment", INTERFACE_VARIABLE, repr(name), ", ".join(there))
    return named


def one_thread_gloo() -> str:
    """The name of a backend for `init_process_group`; groups made of its ranks have it too.

    Each device of gloo has a thread that wakes a hundred times a second, and torch makes a device
    for each group: these threads take the CPU from the one that computes. The groups of this
    backend share a device.
    """
    if not hasattr(dist.Backend, _BACKEND.upper()):
        dist.Backend.register_backend(_BACKEND, _new_group, devices=["cpu"])
    return _BACKEND


def _new_group(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._devices = _gloo_devices()
    options._threads = 2 * len(options._devices)
    group = gloo(store, rank, size, options)
    group._set_sequence_number_for_group()
    return group


@functools.cache
def _gloo_devices() -> list[Any]:
    """This process's, of the interfaces that torch would choose."""
    gloo: Any = dist.ProcessGroupGloo
    named = [gloo.create_device(interface=name) for name in named_interfaces()]
    return named or [gloo.create_default_device()]


def _neighbours(layout: Layout) -> Iterator[tuple[Direction, int, int]]:
    """Every link of every replica: its direction, the process that sends, the one that receives."""
    for replica in range(layout.replicas):
        for before, after in itertools.pairwise(layout.pipeline_ranks(replica)):
            yield "forward", before, after
            yield "backward", after, before


def _link_groups(layout: Layout, rank: int) -> dict[tuple[Direction, int], dist.ProcessGroup]:
    """A group for each link: NCCL keeps the order of a communicator's transfers, so that a receive
    which waits would hold up a send of the same one. Every rank makes all groups.
    """
    links: dict[tuple[Direction, int], dist.ProcessGroup] = {}
    for direction, sender, receiver in _neighbours(layout):
        group = dist.new_group(sorted((sender, receiver)), timeout=COLLECTIVE_TIMEOUT)
        if rank in (sender, receiver):
            links[direction, receiver if rank == sender else sender] = group
    return links


def _connect_links(mesh: Mesh) -> None:
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
