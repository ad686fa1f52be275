"""Transfers of a GPU's tensors by gloo, which sends from the host's memory and receives into it.

For ranks that share a GPU, which NCCL refuses, and where there is no NCCL. The host waits until a
tensor has been computed and copied before it sends it, so what it gives the device next comes a
little late: that is the price.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.engines.channels import ReceivingEnd, SendingEnd
from gnnhpc.engines.transfer import Receiver, Sender


class StagedReceiver(Receiver):
    """Receives into the host's memory, and gives copies on the device."""

    def __init__(
        self,
        channel: ReceivingEnd,
        buffers: Sequence[Tensor],
        device: torch.device,
    ) -> None:
        super().__init__(channel, buffers)
        self._device = device
        self._copied: deque[tuple[torch.cuda.Event | None, Tensor]] = deque()

    def expect(self, count: int) -> None:
        self._copied.clear()
        super().expect(count)

    def take(self) -> Tensor:
        host = super().take()
        taken = torch.empty_like(host, device=self._device, pin_memory=False)
        taken.copy_(host, non_blocking=True)
        self._copied.append((_now(self._device), host))
        return taken

    def release(self, taken: Tensor) -> None:
        """Receive into the oldest buffer again, once its copy is made."""
        copied, host = self._copied.popleft()
        if copied is not None:
            copied.synchronize()
        super().release(host)


class StagedSender(Sender):
    """Copies to the host's memory, and sends from there."""

    def __init__(self, channel: SendingEnd) -> None:
        super().__init__(channel)
        self._hosts: list[Tensor] = []
        """One for each tensor sent in a step."""
        self._used = 0

    def send(self, tensor: Tensor) -> None:
        if self._used == len(self._hosts):
            (host,) = host_buffers(1, tensor.shape, tensor.dtype, tensor.device)
            self._hosts.append(host)
        host = self._hosts[self._used]
        self._used += 1
        host.copy_(tensor, non_blocking=True)
        copied = _now(tensor.device)
        if copied is not None:
            copied.synchronize()
        super().send(host)

    def flush(self) -> None:
        super().flush()
        self._used = 0


def host_buffers(
    count: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Tensors of the host's memory; for a GPU in pages that it may copy from and to by itself."""
    pinned = device.type == "cuda"
    return [torch.empty(tuple(shape), dtype=dtype, pin_memory=pinned) for _ in range(count)]


def _now(device: torch.device) -> torch.cuda.Event | None:
    """The device's stream as it is now, for the host to sleep at; None on a CPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(blocking=True)
    event.record()
    return event
