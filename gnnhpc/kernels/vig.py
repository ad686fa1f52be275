"""`gnnhpc.kernels.vig_torch`'s two functions in C++, for contiguous float32 tensors on a CPU.

They use torch's number of threads; the results do not depend on it, to the bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.kernels import calls
from gnnhpc.kernels.build import load_kernel
from gnnhpc.kernels.vig_torch import Grid, Result, Statistics, Weights

_VECTORS = {16: "avx512", 8: "avx2", 4: "portable"}


def available() -> bool:
    """Whether there is a kernel on this machine; the first call may compile it."""
    return load_kernel("vig") is not None


def instructions() -> str:
    """Which vectors the kernel was built for."""
    lanes: int = _library().vig_lanes()
    return _VECTORS[lanes]


def forward(
    x: Tensor, grid: Grid, weights: Weights, running: Statistics | None, eps: tuple[float, float]
) -> Result:
    """As `vig_torch.forward`."""
    hidden = len(weights.b1)
    state = torch.empty(_state_length(hidden, weights.root is not None), dtype=torch.float64)
    y, out = torch.empty_like(x), torch.empty_like(x)
    library = _library()
    calls.count_compiled(library, "vig_forward")
    library.vig_forward(
        _sizes(x, grid, hidden),
        _pointer(x),
        _pointers(weights),
        None if running is None else _pointers(running),
        _doubles(eps),
        _pointer(y),
        _pointer(out),
        _pointer(state),
    )
    statistics = Statistics(*state[: 2 * hidden + 6].split((hidden, hidden, 3, 3)))
    return Result(out, statistics, (y, state))


def backward(
    x: Tensor,
    grid: Grid,
    weights: Weights,
    saved: tuple[Tensor, ...],
    g: Tensor,
    eps: tuple[float, float],
    *,
    by_batch: bool,
    wants_x: bool,
) -> tuple[Tensor | None, Weights]:
    """As `vig_torch.backward`."""
    y, state = saved
    d_x = torch.empty_like(x) if wants_x else None
    d_weights = Weights._make(None if w is None else torch.empty_like(w) for w in weights)
    library = _library()
    calls.count_compiled(library, "vig_backward")
    library.vig_backward(
        _sizes(x, grid, len(weights.b1)),
        ctypes.c_int64(by_batch),
        _pointer(x),
        _pointer(y),
        _pointer(g),
        _pointers(weights),
        _doubles(eps),
        _pointer(state),
        None if d_x is None else _pointer(d_x),
        _pointers(d_weights),
    )
    return d_x, d_weights


def _library() -> ctypes.CDLL:
    library = load_kernel("vig")
    if library is None:
        raise RuntimeError("the vig kernel is not available here")
    library.vig_state_length.restype = ctypes.c_int64
    library.vig_forward.restype = library.vig_backward.restype = None
    return library


def _state_length(hidden: int, conv: bool) -> int:
    length: int = _library().vig_state_length(ctypes.c_int64(hidden), ctypes.c_int64(conv))
    return length


def _sizes(x: Tensor, grid: Grid, hidden: int) -> ctypes.Array[ctypes.c_int64]:
    images = len(x) // (grid[0] * grid[1])
    return (ctypes.c_int64 * 5)(images, *grid, hidden, torch.get_num_threads())


def _doubles(numbers: Sequence[float]) -> ctypes.Array[ctypes.c_double]:
    return (ctypes.c_double * len(numbers))(*numbers)


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    if not tensor.is_contiguous():
        raise ValueError("a kernel needs contiguous tensors")
    return ctypes.c_void_p(tensor.data_ptr())


def _pointers(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    pointers = [None if tensor is None else _pointer(tensor).value for tensor in tensors]
    return (ctypes.c_void_p * len(tensors))(*pointers)
