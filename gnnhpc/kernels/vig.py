"""`gnnhpc.kernels.vig_torch`'s functions in C++, for contiguous float32 tensors on a CPU.

They keep to torch's number of threads, and give the same bits whatever it is.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from gnnhpc.kernels.build import load_kernel

Grid = tuple[int, int]

_INSTRUCTIONS = {16: "avx512", 8: "avx2", 4: "portable"}


def available() -> bool:
    """Whether there is a kernel on this machine; the first call may compile it."""
    return load_kernel("vig") is not None


def instructions() -> str:
    """Which vectors the kernel was built for."""
    lanes: int = _library().vig_lanes()
    return _INSTRUCTIONS[lanes]


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    sums = torch.empty(12, dtype=torch.float64)
    _call("vig_moments", x, len(x), torch.get_num_threads(), sums)
    mean, square = sums[:3] / len(x), sums[3:].view(3, 3) / len(x)
    return mean, square - torch.outer(mean, mean)


def products(g: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    sums = torch.empty(6, dtype=torch.float64)
    _call("vig_products", g, y, len(g), torch.get_num_threads(), sums)
    return sums[:3], sums[3:]


def neighbour_sum(x: Tensor, grid: Grid) -> Tensor:
    out = torch.empty_like(x)
    _call("vig_neighbour_sum", x, _images(x, grid), *grid, torch.get_num_threads(), out)
    return out


def residual(x: Tensor, y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    out = torch.empty_like(x)
    threads = torch.get_num_threads()
    _call("vig_residual", x, y, len(x), scale.float(), shift.float(), threads, out)
    return out


def forward(
    x: Tensor, sums: Tensor | None, grid: Grid, first: Tensor, second: Tensor, bias: Tensor
) -> Tensor:
    y = torch.empty_like(x)
    threads = torch.get_num_threads()
    sizes = (len(x), *grid, len(first))
    _call("vig_forward", x, sums, *sizes, first, second, bias, threads, y)
    return y


def backward(
    x: Tensor,
    sums: Tensor | None,
    grid: Grid,
    first: Tensor,
    second: Tensor,
    y: Tensor,
    g: Tensor,
    along: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
    d_x = torch.empty_like(x)
    d_sums = None if sums is None else torch.empty_like(x)
    d_first, d_second = first.double(), second.double()
    d_bias = torch.empty(3, dtype=torch.float64)
    given = (x, sums, y, g, along.float(), len(x), *grid, len(first), first, second)
    wanted = (d_x, d_sums, d_first, d_second, d_bias)
    _call("vig_backward", *given, torch.get_num_threads(), *wanted)
    return d_x, d_sums, d_first.float(), d_second.float(), d_bias.float()


def finish(
    d_x: Tensor,
    d_sums: Tensor | None,
    g: Tensor,
    x: Tensor,
    matrix: Tensor,
    vector: Tensor,
    grid: Grid,
) -> Tensor:
    given = (d_sums, g, x, matrix.float(), vector.float(), _images(x, grid), *grid)
    _call("vig_finish", d_x, *given, torch.get_num_threads())
    return d_x


def _images(x: Tensor, grid: Grid) -> int:
    return len(x) // (grid[0] * grid[1])


def _library() -> ctypes.CDLL:
    library = load_kernel("vig")
    if library is None:
        raise RuntimeError("the vig kernel is not available here")
    return library


def _call(name: str, *arguments: Tensor | int | None) -> None:
    """Call a kernel: tensors as pointers, numbers as int64."""
    function = getattr(_library(), name)
    function.restype = None
    function(*(_as_c(argument) for argument in arguments))


def _as_c(argument: Tensor | int | None) -> ctypes.c_void_p | ctypes.c_int64:
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    if not argument.is_contiguous():
        raise ValueError("a kernel needs contiguous tensors")
    return ctypes.c_void_p(argument.data_ptr())
