"""Tensors, sizes and masks as the compiled kernels take them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnnhpc.kernels import calls
from gnnhpc.kernels.build import load_kernel

if TYPE_CHECKING:
    from gnnhpc.kernels.mask import Mask

REAL = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
"""The precisions that kernels of graph layers are compiled for."""
_SUFFIX = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16"}
"""Of float16 there are functions that read features and compute in single precision."""
_INDEX = {torch.int32: "i32", torch.int64: "i64"}
"""The types that kernels take edges and rows numbered in."""


class _Mask(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_uint32),
        ("second", ctypes.c_uint32),
        ("threshold", ctypes.c_uint32),
    )


def fits_kernel(kernel: str, x: Tensor) -> bool:
    """Whether a kernel can compute on `x`; plain torch is used where it cannot."""
    return x.device.type == "cpu" and x.dtype in REAL and load_kernel(kernel) is not None


def reads_kernel(kernel: str, features: Tensor, function: str) -> bool:
    """Whether a kernel's `function` reads features in place, half precision too."""
    if features.dtype != torch.float16:
        return fits_kernel(kernel, features)
    library = load_kernel(kernel) if features.device.type == "cpu" else None
    return library is not None and hasattr(library, f"{function}_{_SUFFIX[torch.float16]}")


def call(
    kernel: str, name: str, like: Tensor, *args: Any, index: torch.dtype | None = None
) -> None:
    """Call a kernel's function `name` in the precision of `like`, and count the call.

    `index` is the type of its edges, of one that takes edges.
    """
    library = load_kernel(kernel)
    assert library is not None
    calls.count_compiled(library, name)
    suffix = _SUFFIX[like.dtype] if index is None else f"{_SUFFIX[like.dtype]}_{_INDEX[index]}"
    function: Callable[..., None] = getattr(library, f"{name}_{suffix}")
    function(*args)


def index_suffix(index: torch.dtype) -> str:
    """Of a function that takes edges of this type, and nothing else of several."""
    return _INDEX[index]


def index_of(*tensors: Tensor) -> torch.dtype:
    """The type that these parts of a block have, all the same."""
    (index,) = {tensor.dtype for tensor in tensors}
    return index


def pointers(*tensors: Tensor) -> list[ctypes.c_void_p]:
    """Addresses of tensors, which must be contiguous."""
    for tensor in tensors:
        assert tensor.is_contiguous()
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def sizes(x: Tensor) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(each) for each in x.shape]


def size(count: int) -> ctypes.c_int64:
    return ctypes.c_int64(count)


def threads() -> ctypes.c_int:
    return ctypes.c_int(torch.get_num_threads())


def real(like: Tensor, value: float) -> Any:
    """A number in the precision of `like`."""
    return REAL[like.dtype](value)


def mask_argument(mask: Mask | None) -> ctypes.Structure:
    """A mask by value; without one, a mask that keeps everything."""
    return _Mask(mask.first, mask.second, mask.threshold) if mask else _Mask(0, 0, 0)
