"""Calls of the compiled channel between two processes; its C++ file says what its memory holds."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from torch import Tensor

from gnnhpc.kernels.compile import load_kernel

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_uint64
_DONE, _NOT_YET = 0, 1


def is_here() -> bool:
    """Whether the kernel can be compiled and loaded."""
    return load_kernel("shared_memory_channel") is not None


@functools.cache
def _library() -> Any:
    """The kernel, which must be here."""
    library: Any = load_kernel("shared_memory_channel")
    library.channel_bytes.argtypes, library.channel_bytes.restype = (_SIZE, _SIZE), _SIZE
    for function in (library.channel_send, library.channel_take):
        function.argtypes = (_POINTER, _SIZE, _SIZE, _POINTER, _SIZE, ctypes.c_int)
    return library


def bytes_needed(slots: int, slot_bytes: int) -> int:
    """Bytes of a channel's memory."""
    return int(_library().channel_bytes(slots, slot_bytes))


class Slots:
    """One end of a channel of `slots` messages of up to `slot_bytes` bytes.

    `memory` [bytes_needed], uint8, is the same for both ends, and zero before the first message.
    """

    def __init__(self, memory: Tensor, slots: int, slot_bytes: int) -> None:
        assert memory.numel() >= bytes_needed(slots, slot_bytes)
        self._memory = memory
        self._place = (memory.data_ptr(), slots, slot_bytes)
        self._send, self._take = _library().channel_send, _library().channel_take

    def send(self, tensor: Tensor, timeout_ms: int) -> bool:
        """Copy a contiguous tensor's bytes into the next slot; false where none is free in time.

        Raises RuntimeError for more bytes than a slot has.
        """
        return self._call(self._send, tensor, timeout_ms)

    def take(self, into: Tensor, timeout_ms: int) -> bool:
        """Copy the next message into a contiguous tensor; false where none comes in time.

        Raises RuntimeError for a message of other size than the tensor.
        """
        return self._call(self._take, into, timeout_ms)

    def _call(self, function: Any, tensor: Tensor, timeout_ms: int) -> bool:
        assert tensor.is_contiguous()
        result = function(*self._place, tensor.data_ptr(), tensor.nbytes, timeout_ms)
        if result not in (_DONE, _NOT_YET):
            raise RuntimeError(f"a message of other size than {tensor.nbytes} bytes, as planned")
        return bool(result == _DONE)
