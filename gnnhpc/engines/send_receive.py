"""Sends and receives one tensor after another, into buffers that are reused.

Tensors of a GPU that gloo sends travel through the host's memory, where ranks share a GPU, which
NCCL refuses, and where there is no NCCL: the host waits until a tensor has been computed and copied
before it sends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.distributed.channels import ReceivingEnd, SendingEnd, Transfer


class Receiver:
    """Receives one tensor a micro-batch from one peer, in order.

    Receives are posted before their tensors are needed, one for each free buffer, so that they come
    while others are computed with. `needs[n]` is how many of the stage's actions must be done
    before the n-th may be posted (`done_before_posting`); without it there is no such limit.
    """

    def __init__(
        self,
        channel: ReceivingEnd,
        buffers: Sequence[Tensor],
        needs: Sequence[int] | None = None,
    ) -> None:
        self._channel = channel
        self._buffers = list(buffers)
        self.needs = needs
        self._free: deque[Tensor] = deque(self._buffers)
        self._posted: deque[tuple[Transfer, Tensor]] = deque()
        self._expected = 0
        self._count = 0
        """How many were posted in this step."""
        self._done = 0
        """Actions that the stage has done in this step."""

    def expect(self, count: int) -> None:
        """Begin a step in which `count` tensors are received."""
        self._expected = count
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
            buffer = self._buffer()
            self._posted.append((self._channel.receive(buffer), buffer))
            self._count += 1

    def _buffer(self) -> Tensor:
        """Into which the next tensor is received."""
        return self._free.popleft()

    def take(self) -> Tensor:
        """The next tensor; blocks until it is received. Return it with `release`."""
        transfer, buffer = self._posted.popleft()
        transfer.wait()
        return buffer

    def release(self, taken: Tensor) -> None:
        """Let the buffer of a tensor be used for another one."""
        self._free.append(taken)
        self._post()


class UnevenReceiver(Receiver):
    """Receives tensors of other rows each; `buffers` say how many at a time, and all but rows."""

    _rows: Sequence[int] = ()

    def expect_rows(self, rows: Sequence[int]) -> None:
        """Begin a step in which tensors of so many rows are received, in this order."""
        self._rows = rows
        self.expect(len(rows))

    def _buffer(self) -> Tensor:
        free, rows = super()._buffer(), self._rows[self._count]
        return free if len(free) == rows else free.new_empty(rows, *free.shape[1:])


class Handover:
    """Both ends of a transfer within one stage: what is sent is taken in the same order, as it is.

    Has the methods of both a `Receiver` and a `Sender`.
    """

    def __init__(self) -> None:
        self._sent: deque[Tensor] = deque()

    def expect(self, count: int) -> None:
        """Begin a step in which `count` tensors are handed over."""
        self._sent.clear()

    def send(self, tensor: Tensor) -> None:
        self._sent.append(tensor)

    def take(self) -> Tensor:
        """The next tensor, which has been sent: the stage does one action after the other."""
        return self._sent.popleft()

    def release(self, taken: Tensor) -> None:
        """Nothing: it lies in no buffer."""

    def flush(self) -> None:
        """Nothing: what is sent has arrived."""


class Sender:
    """Sends to one peer without waiting; `flush` waits until all is sent."""

    def __init__(self, channel: SendingEnd) -> None:
        self._channel = channel
        self._sent: list[tuple[Transfer, Tensor]] = []

    def send(self, tensor: Tensor) -> None:
        contiguous = tensor.contiguous()
        transfer = self._channel.send(contiguous)
        if self._sent:
            self._sent = [pair for pair in self._sent if not pair[0].is_completed()]
        if not transfer.is_completed():
            # The tensor must outlive the transfer.
            self._sent.append((transfer, contiguous))

    def flush(self) -> None:
        for transfer, _ in self._sent:
            transfer.wait()
        self._sent.clear()


class StagedReceiver(Receiver):
    """Receives into the host's memory, and gives copies on the device."""

    def __init__(
        self, channel: ReceivingEnd, buffers: Sequence[Tensor], device: torch.device
    ) -> None:
        super().__init__(channel, buffers)
        self._device = device

    def take(self) -> Tensor:
        host = super().take()
        # It returns once the copy is made: the host's buffer is free again.
        taken = host.to(self._device, copy=True)
        super().release(host)
        return taken

    def release(self, taken: Tensor) -> None:
        """Nothing: the copy lies in no buffer."""


class StagedSender(Sender):
    """Copies to the host's memory, and sends from there."""

    def send(self, tensor: Tensor) -> None:
        (host,) = host_buffers(1, tensor.shape, tensor.dtype, tensor.device)
        # It returns once the tensor is computed and copied.
        super().send(host.copy_(tensor))


def host_buffers(
    count: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Tensors of the host's memory; for a GPU in pages that it may copy from and to by itself."""
    pinned = device.type == "cuda"
    return [torch.empty(tuple(shape), dtype=dtype, pin_memory=pinned) for _ in range(count)]
