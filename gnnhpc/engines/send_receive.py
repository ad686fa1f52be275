"""Sends and receives one tensor after another, into buffers that are reused.

Tensors of a GPU that gloo sends travel through the host's memory, where ranks share a GPU, which
NCCL refuses, and where there is no NCCL: the host waits until a tensor has been computed and copied
before it sends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from gnnhpc.distributed.channels import GroupChannel, SharedReceiver, SharedSender


class Receiver:
    """Receives one tensor a micro-batch from one peer, in order.

    Receives are posted before their tensors are needed, one for each free buffer, so that they come
    while others are computed with. `needs[n]` is how many of the stage's actions must be done
    before the n-th may be posted (`done_before_posting`); without it there is no such limit. With
    `copied_to` buffers lie in the host's memory, and what is taken are copies on that device.
    """

    def __init__(
        self,
        channel: GroupChannel | SharedReceiver,
        buffers: Sequence[Tensor],
        needs: Sequence[int] | None = None,
        copied_to: torch.device | None = None,
    ) -> None:
        self._channel = channel
        self._buffers = list(buffers)
        self.needs = needs
        self._copied_to = copied_to
        self._free: deque[Tensor] = deque(self._buffers)
        self._posted: deque[tuple[Callable[[], object], Tensor]] = deque()
        """What waits for a tensor, and its buffer."""
        self._expected = 0
        self._rows: Sequence[int] | None = None
        self._count = 0
        """How many were posted in this step."""
        self._done = 0
        """Actions that the stage has done in this step."""

    def expect(self, count: int, rows: Sequence[int] | None = None) -> None:
        """Begin a step in which `count` tensors are received, of these rows where they differ."""
        self._expected, self._rows = count, rows
        self._count = self._done = 0
        self._free = deque(self._buffers)
        self._posted.clear()
        self._post()

    def allow(self, done: int) -> None:
        """Post what may be received once `done` actions of the stage are done."""
        self._done = done
        self._post()

    def _post(self) -> None:
        while self._count < self._expected and self._free:
            if self.needs is not None and self.needs[self._count] > self._done:
                return
            buffer = self._free.popleft()
            if self._rows is not None and len(buffer) != self._rows[self._count]:
                buffer = buffer.new_empty(self._rows[self._count], *buffer.shape[1:])
            self._posted.append((self._channel.receive(buffer), buffer))
            self._count += 1

    def take(self) -> Tensor:
        """The next tensor; blocks until it is received. Return it with `release`."""
        wait, buffer = self._posted.popleft()
        wait()
        if self._copied_to is None:
            return buffer
        # It returns once the copy is made: the host's buffer is free again.
        copy = buffer.to(self._copied_to, copy=True)
        self._free.append(buffer)
        self._post()
        return copy

    def release(self, taken: Tensor) -> None:
        """Let the buffer of a tensor be used for another one."""
        if self._copied_to is None:
            self._free.append(taken)
            self._post()


class Handover(deque[Tensor]):
    """Both ends of a transfer within one stage: what is sent is taken in the same order, as it is.

    The stage does one action after the other, so what is taken has been sent.
    """

    send = deque.append
    take = deque.popleft

    def release(self, taken: Tensor) -> None:
        """Nothing: it lies in no buffer."""


class Sender:
    """Sends to one peer without waiting; `flush` waits until all is sent.

    A `staged` one copies to the host's memory, and sends from there.
    """

    def __init__(self, channel: GroupChannel | SharedSender, *, staged: bool = False) -> None:
        self._channel = channel
        self._staged = staged
        self._sent: list[tuple[dist.Work, Tensor]] = []

    def send(self, tensor: Tensor) -> None:
        if self._staged:
            # It returns once the tensor is computed and copied.
            tensor = host_buffer(tensor.shape, tensor.dtype, tensor.device).copy_(tensor)
        contiguous = tensor.contiguous()
        work = self._channel.send(contiguous)
        if self._sent:
            self._sent = [pair for pair in self._sent if not pair[0].is_completed()]
        if work is not None and not work.is_completed():
            # The tensor must outlive the transfer.
            self._sent.append((work, contiguous))

    def flush(self) -> None:
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()


def host_buffer(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of the host's memory; for a GPU in pages that it may copy from and to by itself."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=device.type == "cuda")
