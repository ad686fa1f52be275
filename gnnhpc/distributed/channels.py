"""How one tensor after another travels one way between two ranks.

By gloo or NCCL, or between ranks of one node through memory that both have mapped: the thread that
computes copies, a few microseconds a tensor, where gloo's thread would take its processor. Such a
channel has a slot for each micro-batch of a step, so that a send waits only for what was sent a
whole step before. The peer can always take that, so no schedule comes to a standstill.
"""

from __future__ import annotations

from typing import Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.distributed.peer_memory import Peer, SharedMemory
from gnnhpc.kernels.shared_memory_channel import Slots, bytes_needed

SHARED_MEMORY: Final = "shared memory"
_CHECK_MS = 100
"""How often a waiting rank checks whether the other one has ended."""


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
        return work

    def receive(self, into: Tensor) -> Transfer:
        work = dist.irecv(into, src=self._peer, group=self._group, tag=self._tag)
        assert work is not None
        return work


class SharedSender:
    """The sending end of a channel through memory, which it makes; the receiver gets the memory's
    file descriptor by a group."""

    def __init__(self, slots: int, slot_bytes: int, peer: Peer, by: GroupChannel) -> None:
        """Raises GnnhpcError where the node has no such memory."""
        self._peer = peer
        try:
            self._memory = SharedMemory(bytes_needed(slots, slot_bytes))
        except OSError as error:
            raise GnnhpcError(
                f"no memory to share between stages ({error.strerror}); GNNHPC_SHARED_MEMORY=0 "
                "sends by gloo"
            ) from None
        self._slots = Slots(self._memory.bytes, slots, slot_bytes)
        self._announced = by.send(torch.tensor([self._memory.fd]))

    def open(self) -> None:
        """Wait until the other end knows of the memory."""
        self._announced.wait()

    def send(self, tensor: Tensor) -> Transfer:
        """Copies it at once. Raises RuntimeError where there is no room and the peer has ended."""
        while not self._slots.send(tensor, _CHECK_MS):
            if self._peer.has_ended():
                raise self._peer.lost()
        return _SENT


class SharedReceiver:
    """The receiving end."""

    def __init__(self, slots: int, slot_bytes: int, peer: Peer, by: GroupChannel) -> None:
        self._peer = peer
        self._sizes = slots, slot_bytes
        self._fd = torch.tensor([0])
        self._announced = by.receive(self._fd)
        self._slots: Slots | None = None

    def open(self) -> None:
        """Wait for the memory's file descriptor, and map it."""
        self._announced.wait()
        memory = self._peer.open(int(self._fd), bytes_needed(*self._sizes))
        self._slots = Slots(memory, *self._sizes)

    def receive(self, into: Tensor) -> Transfer:
        """It is copied when it is waited for, in the order of these calls."""
        return _Taking(self, into)

    def take(self, into: Tensor) -> None:
        """Copy the next tensor. Raises RuntimeError if none is left and the peer has ended."""
        assert self._slots is not None, "open comes first"
        while not self._slots.take(into, _CHECK_MS):
            # What it sent before it ended counts.
            if self._peer.has_ended():
                if self._slots.take(into, 0):
                    break
                raise self._peer.lost()


class _Taking:
    """A tensor to be received."""

    def __init__(self, receiver: SharedReceiver, into: Tensor) -> None:
        self._receiver, self._into = receiver, into

    def wait(self) -> None:
        self._receiver.take(self._into)

    def is_completed(self) -> bool:
        return False


class _Sent:
    """A tensor that is sent: nothing is left to do."""

    def wait(self) -> None:
        """It is done."""

    def is_completed(self) -> bool:
        return True


_SENT = _Sent()
