"""`gnnhpc.kernels.vig_torch`'s two functions in C++, for contiguous float32 tensors on a CPU.

They use torch's number of threads; the results do not depend on it, to the bit.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from gnnhpc.kernels import calls
from gnnhpc.kernels.build import load_kernel
from gnnhpc.kernels.vig_torch import Grid, Moved, Result, Statistics, Weights

_VECTORS = {16: "avx512", 8: "avx2", 4: "portable"}


def available() -> bool:
    """Whether there is a kernel on this machine; the first call may compile it."""
    return load_kernel("vig") is not None


def instructions() -> str:
    """Which vectors the kernel was built for."""
    lanes: int = library().vig_lanes()
    return _VECTORS[lanes]


def forward(
    x: Tensor,
    grid: Grid,
    weights: Weights,
    running: Statistics | None,
    eps: tuple[float, float],
    moved: Moved | None = None,
) -> Result:
    """As `vig_torch.forward`; moves running statistics `moved` besides, and returns none then."""
    hidden, conv = weights.b1.shape[0], weights.root is not None
    state = torch.empty(state_length(hidden, conv=conv), dtype=torch.float64)
    y, out = torch.empty_like(x), torch.empty_like(x)
    kernel = library()
    calls.count_compiled(kernel, "vig_forward")
    kernel.vig_forward(
        sizes(x.shape[0] // (grid[0] * grid[1]), *grid, hidden, torch.get_num_threads()),
        pointer(x),
        pointers(weights),
        None if running is None else pointers(running),
        _doubles(eps),
        None if moved is None else pointers(moved.statistics),
        None if moved is None else pointers(moved.batches),
        None if moved is None else _doubles(moved.momentum),
        y.data_ptr(),
        out.data_ptr(),
        state.data_ptr(),
    )
    statistics = None
    if moved is None:
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
    kernel = library()
    calls.count_compiled(kernel, "vig_backward")
    hidden = weights.b1.shape[0]
    kernel.vig_backward(
        sizes(x.shape[0] // (grid[0] * grid[1]), *grid, hidden, torch.get_num_threads()),
        int(by_batch),
        0,
        pointer(x),
        pointer(y),
        pointer(g),
        pointers(weights),
        _doubles(eps),
        pointer(state),
        None if d_x is None else d_x.data_ptr(),
        pointers(d_weights),
    )
    return d_x, d_weights


@functools.cache
def _prepared(kernel: ctypes.CDLL) -> ctypes.CDLL:
    integer, pointer = ctypes.c_int64, ctypes.c_void_p
    kernel.vig_state_length.argtypes = [integer] * 2
    kernel.vig_state_length.restype = integer
    kernel.vig_forward.argtypes = [pointer] * 11
    kernel.vig_backward.argtypes = [pointer, integer, integer, *[pointer] * 8]
    kernel.vig_layers_forward.argtypes = [*[integer] * 3, *[pointer] * 11]
    kernel.vig_layers_backward.argtypes = [*[integer] * 3, *[pointer] * 10]
    kernel.vig_readout_forward.argtypes = [pointer] * 5
    kernel.vig_readout_backward.argtypes = [pointer] * 6
    for function in ("vig", "vig_layers", "vig_readout"):
        getattr(kernel, f"{function}_forward").restype = None
        getattr(kernel, f"{function}_backward").restype = None
    return kernel


def library() -> ctypes.CDLL:
    """The kernel; raises RuntimeError where it is not available."""
    kernel = load_kernel("vig")
    if kernel is None:
        raise RuntimeError("the vig kernel is not available here")
    return _prepared(kernel)


@functools.cache
def state_length(hidden: int, *, conv: bool) -> int:
    """Of what a layer's forward leaves for its backward: numbers of float64."""
    length: int = library().vig_state_length(hidden, conv)
    return length


@functools.lru_cache(maxsize=1024)
def sizes(*numbers: int) -> ctypes.Array[ctypes.c_int64]:
    """Of a call, the number of threads last."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


@functools.lru_cache(maxsize=1024)
def _doubles(numbers: tuple[float, ...]) -> ctypes.Array[ctypes.c_double]:
    return (ctypes.c_double * len(numbers))(*numbers)


@functools.lru_cache(maxsize=4096)
def _addresses(addresses: tuple[int | None, ...]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(addresses))(*addresses)


def pointer(tensor: Tensor) -> int:
    """A contiguous tensor's address; raises ValueError for another."""
    return tensor.data_ptr() if tensor.is_contiguous() else _refuse()


def _refuse() -> NoReturn:
    raise ValueError("a kernel needs contiguous tensors")


def pointers(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    """As `pointer`, of each; null for None."""
    # One line for all: forty tensors a layer and micro-batch.
    return _addresses(
        tuple(
            [
                None if t is None else t.data_ptr() if t.is_contiguous() else _refuse()
                for t in tensors
            ]
        )
    )
