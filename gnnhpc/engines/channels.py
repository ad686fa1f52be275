"""How one tensor after another travels one way between two ranks.

By gloo or NCCL, or between ranks of one node through memory that both have mapped: the thread that
computes copies, a few microseconds a tensor, where gloo's thread would take its processor. Such a
channel has a slot for each micro-batch of a step, so that a send waits only for what was sent a
whole step before. The peer can always take that, so no schedule comes to a standstill.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gnnhpc.distributed.mesh import COLLECTIVE_S
from gnnhpc.distributed.peer_memory import Peer, SharedMemory
from gnnhpc.kernels.shared_memory_channel import Slots, bytes_needed

SHARED_MEMORY: Final = "shared memory"
BY_GROUP: Final = "process group"
carried: Counter[str] = Counter()
"""How many tensors this process has sent or received each way, or begun to."""


class Transfer(Protocol):
    """What was begun: of a tensor that is sent, or of one to be received."""

    def wait(self) -> object:
        """Until the tensor may be used."""
        ...

    def is_completed(self) -> bool: ...


class SendingEnd(Protocol):
    def send(self, tensor: Tensor) -> Transfer:
        """Begin to send a contiguous tensor, which must stay as it is until that is completed."""
        ...


class ReceivingEnd(Protocol):
    def receive(self, into: Tensor) -> Transfer:
        """Begin to receive the next tensor into a contiguous one."""
        ...


class GroupChannel:
    """Both ends, by a process group; `tag` distinguishes channels between two ranks."""

    def __init__(self, peer: int, group: dist.ProcessGroup, tag: int = 0) -> None:
        self._peer, self._group, self._tag = peer, group, tag

    def send(self, tensor: Tensor) -> Transfer:
        work = dist.isend(tensor, dst=self._peer, group=self._group, tag=self._tag)
        assert work is not None
        carried[BY_GROUP] += 1
        return work

    def receive(self, into: Tensor) -> Transfer:
        work = dist.irecv(into, src=self._peer, group=self._group, tag=self._tag)
        assert work is not None
        carried[BY_GROUP] += 1
        return work


_LOOK_MS = 100
"""How often a waiting rank checks whether the other one has ended."""

_NONE = -1
"""Stands for a missing file descriptor."""


class SharedSender:
    """The sending end, whose memory it is; it sends its name to the receiving end by a group.

    Where this process may not have so much memory, as its files may not be so large (`ulimit -f`),
    tensors travel by the group.
    """

    def __init__(self, slots: int, slot_bytes: int, peer: Peer, by: GroupChannel) -> None:
        self._peer, self._by = peer, by
        self._slots: Slots | None = None
        fd = _NONE
        with contextlib.suppress(OSError):
            self._memory = SharedMemory(bytes_needed(slots, slot_bytes))
            self._slots = Slots(self._memory.bytes, slots, slot_bytes)
            fd = self._memory.fd
        self._place = torch.tensor([fd, slots, slot_bytes])
        self._announced = by.send(self._place)

    @property
    def shares(self) -> bool:
        """Whether tensors pass through memory, once it is open."""
        return self._slots is not None

    def open(self) -> None:
        """Wait until the other end knows the memory."""
        self._announced.wait()

    def send(self, tensor: Tensor) -> Transfer:
        """Copies it at once. Raises RuntimeError where there is no room and the peer has ended."""
        if self._slots is None:
            return self._by.send(tensor)
        began_s = time.monotonic()
        while not self._slots.send(tensor, _LOOK_MS):
            if self._peer.has_ended():
                raise self._peer.lost()
            _check_wait(self._peer, began_s)
        carried[SHARED_MEMORY] += 1
        return _DONE


class SharedReceiver:
    """The receiving end."""

    def __init__(self, slots: int, slot_bytes: int, peer: Peer, by: GroupChannel) -> None:
        self._peer, self._by = peer, by
        self._sizes = [slots, slot_bytes]
        self._place = torch.zeros(3, dtype=torch.int64)
        self._announced = by.receive(self._place)
        self._slots: Slots | None = None

    @property
    def shares(self) -> bool:
        """Whether tensors pass through memory, once it is open."""
        return self._slots is not None

    def open(self) -> None:
        """Wait for the other end. Raises RuntimeError for one of other sizes."""
        self._announced.wait()
        fd, *sizes = self._place.tolist()
        if sizes != self._sizes:
            raise RuntimeError(
                f"rank {self._peer.rank} sends {sizes[0]} tensors of {sizes[1]} bytes a step, "
                f"where {self._sizes[0]} of {self._sizes[1]} bytes are expected"
            )
        if fd == _NONE:
            return
        slots, slot_bytes = sizes
        memory = self._peer.open(fd, bytes_needed(slots, slot_bytes))
        self._slots = Slots(memory, slots, slot_bytes)

    def receive(self, into: Tensor) -> Transfer:
        """It is copied when it is waited for, in the order of these calls."""
        if self._slots is None:
            return self._by.receive(into)
        return _Taking(self, into)

    def take(self, into: Tensor) -> None:
        """Copy the next tensor. Raises RuntimeError if none is left and the peer has ended."""
        assert self._slots is not None, "open comes first"
        began_s = time.monotonic()
        while not self._slots.take(into, _LOOK_MS):
            # What it sent before it ended counts.
            if self._peer.has_ended():
                if self._slots.take(into, 0):
                    break
                raise self._peer.lost()
            _check_wait(self._peer, began_s)
        carried[SHARED_MEMORY] += 1


def _check_wait(peer: Peer, began_s: float) -> None:
    """Raises RuntimeError where a peer that lives has been waited for as long as gloo would."""
    if time.monotonic() - began_s > COLLECTIVE_S:
        raise RuntimeError(f"Timed out waiting {COLLECTIVE_S:g} s for rank {peer.rank}")


class _Taking:
    """A tensor to be received."""

    def __init__(self, receiver: SharedReceiver, into: Tensor) -> None:
        self._receiver, self._into = receiver, into

    def wait(self) -> None:
        self._receiver.take(self._into)

    def is_completed(self) -> bool:
        return False


class _Done:
    """A tensor that is sent: nothing is left to do."""

    def wait(self) -> None:
        """It is done."""

    def is_completed(self) -> bool:
        return True


_DONE = _Done()
