"""How one tensor after another travels one way between two ranks: here by gloo or NCCL."""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

import torch.distributed as dist
from torch import Tensor

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
    """Both ends, by a process group; `tag` tells channels between two ranks from each other."""

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
