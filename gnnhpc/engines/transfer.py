"""Sends and receives tensors between neighbouring stages, into buffers that are reused."""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor


class Receiver:
    """Receives one tensor a micro-batch from one peer, in order.

    On CPU the next receives are posted before they are needed, one for each free buffer, so that a
    sender does not wait. NCCL runs transfers in the order they are issued, so on a GPU each is
    posted when its tensor is taken.
    """

    def __init__(
        self,
        peer: int,
        group: dist.ProcessGroup,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        buffers: int,
    ) -> None:
        self._peer = peer
        self._group = group
        self._ahead = device.type == "cpu"
        self._buffers = [torch.empty(shape, dtype=dtype, device=device) for _ in range(buffers)]
        self._free: deque[Tensor] = deque(self._buffers)
        self._posted: deque[tuple[dist.Work, Tensor]] = deque()
        self._expected = 0

    def expect(self, count: int) -> None:
        """Begin a step in which `count` tensors are received."""
        self._expected = count
        self._free = deque(self._buffers)
        self._posted.clear()
        if self._ahead:
            self._post()

    def _post(self) -> None:
        while self._expected and self._free:
            buffer = self._free.popleft()
            work = dist.irecv(buffer, src=self._peer, group=self._group)
            assert work is not None
            self._posted.append((work, buffer))
            self._expected -= 1

    def take(self) -> Tensor:
        """The next tensor; blocks until it is received. Return its buffer with `release`."""
        if not self._posted:
            self._post()
        work, buffer = self._posted.popleft()
        work.wait()
        return buffer

    def release(self, buffer: Tensor) -> None:
        """Let a buffer be used for another tensor."""
        self._free.append(buffer)
        if self._ahead:
            self._post()


class Sender:
    """Sends to one peer without waiting; `flush` waits until all is sent."""

    def __init__(self, peer: int, group: dist.ProcessGroup) -> None:
        self._peer = peer
        self._group = group
        self._sent: list[tuple[dist.Work, Tensor]] = []

    def send(self, tensor: Tensor) -> None:
        contiguous = tensor.contiguous()
        work = dist.isend(contiguous, dst=self._peer, group=self._group)
        assert work is not None
        # The tensor must outlive the transfer.
        self._sent.append((work, contiguous))
        self._sent = [pair for pair in self._sent if not pair[0].is_completed()]

    def flush(self) -> None:
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()
