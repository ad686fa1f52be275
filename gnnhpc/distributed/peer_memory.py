"""Which ranks can read this one's memory: those of its node, as the launcher has it, that tried.

A rank's memory has no name in a folder, that could be left behind: it is a file descriptor, which a
process of the same user opens through /proc. That fails, or finds other memory, between machines,
and between containers with processes of their own: tensors travel by the network there.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnnhpc.distributed.environment import Environment, switch
from gnnhpc.kernels import shared_memory_channel as channel

VARIABLE = "GNNHPC_SHARED_MEMORY"
_PROBE_BYTES = 32


class SharedMemory:
    """[count], uint8, zero: memory of this process that others may map by `fd`."""

    def __init__(self, count: int) -> None:
        self.fd = os.memfd_create("gnnhpc", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.fd)
        # Without this a node without memory would signal a process only when it writes.
        os.posix_fallocate(self.fd, 0, count)
        self.bytes = _mapped(self.fd, count)


class Peer:
    """A rank of this node whose memory can be opened here."""

    def __init__(self, rank: int, pid: int) -> None:
        """Raises OSError where there is no such process."""
        self.rank = rank
        self._pid = pid
        self._process = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self._process)
        self._poll = select.poll()
        self._poll.register(self._process, select.POLLIN)

    def open(self, fd: int, count: int) -> Tensor:
        """[count], uint8: memory that the rank has under this number.

        Raises OSError where it cannot be opened, or is smaller.
        """
        opened = os.open(f"/proc/{self._pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(opened).st_size < count:
                raise OSError(f"rank {self.rank} has no {count} bytes of memory under {fd}")
            return _mapped(opened, count)
        finally:
            os.close(opened)

    def has_ended(self) -> bool:
        """Whether its process has."""
        return bool(self._poll.poll(0))

    def lost(self) -> RuntimeError:
        """The error of a rank that waits for this one, in gloo's words."""
        return RuntimeError(f"Connection closed by peer: rank {self.rank} has ended")


def _mapped(fd: int, count: int) -> Tensor:
    """All pages at once, so that no step pays for them."""
    pages = mmap.mmap(fd, count, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    return torch.frombuffer(pages, dtype=torch.uint8)


def find_peers(store: Any, environment: Environment, ranks: Sequence[int]) -> dict[int, Peer]:
    """Those of `ranks` whose memory can be opened here, and that can open this rank's; by rank.

    Every one of `ranks` must call this; they meet in the ranks' store. Raises InputError for a
    value of GNNHPC_SHARED_MEMORY that is neither yes nor no.
    """
    mine = environment.rank
    probe = _probe() if _can_share() else None
    offer = probe and {
        "node": environment.node,
        "pid": os.getpid(),
        "fd": probe.fd,
        "holds": probe.bytes.tolist(),
    }
    store.set(f"memory/{mine}", json.dumps(offer))
    others = [rank for rank in ranks if rank != mine]
    found = {}
    for rank in others:
        offered = json.loads(store.get(f"memory/{rank}"))
        if offer and offered and offered["node"] == environment.node:
            peer = _opened(rank, offered)
            if peer is not None:
                found[rank] = peer
    store.set(f"memory-opened/{mine}", json.dumps(sorted(found)))
    # Once all have said what they opened, the probe may go.
    opened = {rank: json.loads(store.get(f"memory-opened/{rank}")) for rank in others}
    return {rank: peer for rank, peer in found.items() if mine in opened[rank]}


def _probe() -> SharedMemory | None:
    """A few bytes that no other process has; None where the system refuses such memory."""
    try:
        probe = SharedMemory(_PROBE_BYTES)
    except OSError:
        return None
    probe.bytes.copy_(torch.frombuffer(bytearray(os.urandom(_PROBE_BYTES)), dtype=torch.uint8))
    return probe


def _can_share() -> bool:
    """Whether this rank is to share memory, has the kernel, and sees its own processes in /proc."""
    return (
        switch(VARIABLE) is not False
        and hasattr(os, "memfd_create")
        and hasattr(os, "pidfd_open")
        and Path("/proc/self").readlink().name == str(os.getpid())
        and channel.is_here()
    )


def _opened(rank: int, offered: Mapping[str, Any]) -> Peer | None:
    try:
        peer = Peer(rank, offered["pid"])
        holds = peer.open(offered["fd"], _PROBE_BYTES)
    except OSError:
        return None
    return peer if holds.tolist() == offered["holds"] else None
