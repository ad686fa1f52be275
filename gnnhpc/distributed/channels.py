"""How one tensor after another travels one way between two ranks.

By gloo or NCCL, or between ranks of one node through memory that both have mapped: the thread that
computes copies, a few microseconds a tensor, where gloo's thread would take its processor. Such a
channel has a slot for each micro-batch of a step, so that a send waits only for what was sent a
whole step before. The peer can always take that, so no schedule comes to a standstill.

A rank's memory has no name in a folder, that could be left behind: it is a file descriptor, which a
process of the same user opens through /proc. That fails, or finds other memory, between machines,
and between containers with processes of their own: tensors travel by gloo there.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.distributed.environment import Environment, switch
from gnnhpc.kernels import shared_memory_channel as channel

VARIABLE = "GNNHPC_SHARED_MEMORY"
SHARED_MEMORY: Final = "shared memory"
_PROBE_BYTES = 32
_CHECK_MS = 100
"""How often a waiting rank checks whether the other one has ended."""


class GroupChannel:
    """Both ends, by a process group; `tag` distinguishes channels between two ranks."""

    def __init__(self, peer: int, group: dist.ProcessGroup, tag: int = 0) -> None:
        self._peer, self._group, self._tag = peer, group, tag

    def send(self, tensor: Tensor) -> dist.Work | None:
        """Begin to send a contiguous tensor, which must stay as it is until that is completed."""
        return dist.isend(tensor, dst=self._peer, group=self._group, tag=self._tag)

    def receive(self, into: Tensor) -> Callable[[], object]:
        """Begin to receive the next tensor into a contiguous one; returns what waits for it."""
        work = dist.irecv(into, src=self._peer, group=self._group, tag=self._tag)
        assert work is not None
        return work.wait


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


def find_peers(
    exchange: Callable[[str, Any], Sequence[Any]], environment: Environment, ranks: Sequence[int]
) -> dict[int, Peer]:
    """Those of `ranks` whose memory can be opened here, and that can open this rank's; by rank.

    `exchange` gives every rank's value under a key. Raises InputError for a value of
    GNNHPC_SHARED_MEMORY that is neither yes nor no.
    """
    probe = _probe()
    mine = {"node": environment.node, "pid": os.getpid()}
    offers = exchange("memory", probe and mine | {"fd": probe.fd, "holds": probe.bytes.tolist()})
    found = {}
    for rank in ranks:
        offer = offers[rank]
        if probe and offer and rank != environment.rank and offer["node"] == environment.node:
            with contextlib.suppress(OSError):
                peer = Peer(rank, offer["pid"])
                if peer.open(offer["fd"], _PROBE_BYTES).tolist() == offer["holds"]:
                    found[rank] = peer
    # Once all have said what they opened, the probe may go.
    opened = exchange("memory-opened", sorted(found))
    return {rank: peer for rank, peer in found.items() if environment.rank in opened[rank]}


def _probe() -> SharedMemory | None:
    """A few bytes that no other process has; None where this rank is not to share memory, has not
    the kernel, does not see its own processes in /proc, or the system refuses such memory."""
    shares = (
        switch(VARIABLE) is not False
        and hasattr(os, "memfd_create")
        and hasattr(os, "pidfd_open")
        and Path("/proc/self").readlink().name == str(os.getpid())
        and channel.is_here()
    )
    with contextlib.suppress(OSError):
        probe = SharedMemory(_PROBE_BYTES) if shares else None
        if probe is not None:
            probe.bytes.copy_(
                torch.frombuffer(bytearray(os.urandom(_PROBE_BYTES)), dtype=torch.uint8)
            )
        return probe
    return None


class SharedSender:
    """The sending end of a channel through memory, which it makes; the receiver gets the memory's
    file descriptor by a group."""

    def __init__(self, slots: int, slot_bytes: int, peer: Peer, by: GroupChannel) -> None:
        """Raises GnnhpcError where the node has no such memory."""
        self._peer = peer
        try:
            self._memory = SharedMemory(channel.bytes_needed(slots, slot_bytes))
        except OSError as error:
            raise GnnhpcError(
                f"no memory to share between stages ({error.strerror}); GNNHPC_SHARED_MEMORY=0 "
                "sends by gloo"
            ) from None
        self._slots = channel.Slots(self._memory.bytes, slots, slot_bytes)
        self._announced = by.send(torch.tensor([self._memory.fd]))

    def open(self) -> None:
        """Wait until the other end knows of the memory."""
        assert self._announced is not None
        self._announced.wait()

    def send(self, tensor: Tensor) -> dist.Work | None:
        """Copy a contiguous tensor at once. Raises RuntimeError where there is no room and the peer
        has ended."""
        while not self._slots.send(tensor, _CHECK_MS):
            if self._peer.has_ended():
                raise self._peer.lost()
        return None


class SharedReceiver:
    """The receiving end."""

    def __init__(self, slots: int, slot_bytes: int, peer: Peer, by: GroupChannel) -> None:
        self._peer = peer
        self._sizes = slots, slot_bytes
        self._fd = torch.tensor([0])
        self._wait_for_fd = by.receive(self._fd)
        self._slots: channel.Slots | None = None

    def open(self) -> None:
        """Wait for the memory's file descriptor, and map it."""
        self._wait_for_fd()
        memory = self._peer.open(int(self._fd), channel.bytes_needed(*self._sizes))
        self._slots = channel.Slots(memory, *self._sizes)

    def receive(self, into: Tensor) -> Callable[[], object]:
        """A function that copies the next tensor into a contiguous one; to be called in the order
        of these calls. It raises RuntimeError if none is left and the peer has ended."""
        return partial(self._take, into)

    def _take(self, into: Tensor) -> None:
        assert self._slots is not None, "open comes first"
        while not self._slots.take(into, _CHECK_MS):
            # What it sent before it ended counts.
            if self._peer.has_ended():
                if self._slots.take(into, 0):
                    break
                raise self._peer.lost()
