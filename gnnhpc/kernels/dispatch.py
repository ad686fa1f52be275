"""Which code computes on a tensor (C++, Triton or torch), and calls of compiled functions."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gnnhpc.kernels.compile import load_kernel

if TYPE_CHECKING:
    from gnnhpc.kernels.dropout_mask import Mask

Backend = Literal["c++", "triton", "torch"]
REAL: dict[torch.dtype, Any] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
"""The precisions that kernels of graph layers are compiled for."""
_SUFFIXES = {
    torch.float16: "f16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int32: "i32",
    torch.int64: "i64",
}
"""Ends of the names of functions. Those for float16 read features in half precision and compute in
single precision; those for integers take edges and rows that are numbered in this type."""
_thread = threading.local()


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Within it this thread computes in plain torch, with which validation compares kernels."""
    before, _thread.is_plain = is_plain(), True
    try:
        yield
    finally:
        _thread.is_plain = before


def is_plain() -> bool:
    """Whether this thread is inside `plain_torch`."""
    return getattr(_thread, "is_plain", False)


def backend(kernel: str, x: Tensor) -> Backend:
    """The code that computes on tensors like `x`: the C++ file `kernel` on a CPU, Triton on a GPU,
    plain torch where there is neither, for other precisions than single and double, and within
    `plain_torch`."""
    if x.dtype in REAL and not is_plain():
        if x.device.type == "cpu":
            return "torch" if load_kernel(kernel) is None else "c++"
        if x.is_cuda and triton_runs():
            return "triton"
    return "torch"


def triton_runs() -> bool:
    """Whether Triton's programs run on this process's GPU."""
    from gnnhpc.kernels.triton.launch import why_not

    return not why_not()


def call(
    kernel: str,
    function: str,
    *args: Any,
    dtype: torch.dtype | None = None,
    index: torch.dtype | None = None,
    result: Any = None,
) -> Any:
    """Call a function of a C++ kernel, which returns a `result`.

    It is the one that is compiled for numbers of `dtype` and for edges of type `index`, where there
    are several. Each argument is passed as `argument` says; the number of threads comes last.
    """
    library = load_kernel(kernel)
    assert library is not None
    name = "_".join((function, *(_SUFFIXES[each] for each in (dtype, index) if each is not None)))
    passed = (argument(each, dtype) for each in (*args, torch.get_num_threads()))
    return _compiled_function(library, name, result)(*passed)


@functools.cache
def _compiled_function(library: ctypes.CDLL, name: str, result: Any) -> Callable[..., Any]:
    found = ctypes.c_void_p.in_dll(library, name).value
    assert found is not None
    return ctypes.CFUNCTYPE(result)(found)


def argument(value: Any, dtype: torch.dtype | None = None) -> Any:
    """A contiguous tensor's address (null for None); a number as int64, or as a real of `dtype`.

    Other values, such as masks, are C's already.
    """
    if value is None or isinstance(value, Tensor):
        return ctypes.c_void_p(address(value))
    if isinstance(value, bool):
        return ctypes.c_bool(value)
    if isinstance(value, int):
        return ctypes.c_int64(value)
    if isinstance(value, float):
        return (ctypes.c_double if dtype == torch.float64 else ctypes.c_float)(value)
    return value


def address(tensor: Tensor | None) -> int | None:
    """Address of a contiguous tensor of a CPU; None for None."""
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    assert tensor.is_cpu, f"found a tensor of {tensor.device}; allowed: of a CPU"
    return tensor.data_ptr()


class _Mask(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("first", "second", "threshold"))


def mask_argument(mask: Mask | None) -> ctypes.Structure:
    """A mask by value; without one, a mask that keeps everything."""
    if mask is None:
        return _Mask(0, 0, 0)
    # Of keys in memory, which are signed, the conversion keeps the bits.
    return _Mask(int(mask.first), int(mask.second), mask.threshold)


def structures(
    *, pointers: str, sizes: str = "", reals: str = "", masks: str = "", flags: str = ""
) -> dict[torch.dtype, type[ctypes.Structure]]:
    """For each precision a C++ struct of these fields, in this order; sizes are int64."""
    found = {}
    for dtype, real in REAL.items():
        kinds = (ctypes.c_void_p, ctypes.c_int64, real, _Mask, ctypes.c_bool)
        names = (pointers, sizes, reals, masks, flags)
        fields = [
            (name, kind) for kind, of in zip(kinds, names, strict=True) for name in of.split()
        ]
        found[dtype] = type("Struct", (ctypes.Structure,), {"_fields_": fields})
    return found


def filled(layout: type[ctypes.Structure], **values: Any) -> ctypes.Structure:
    """A struct with these values; tensors by their addresses, which the caller keeps."""
    return layout(
        **{name: address(x) if isinstance(x, Tensor) else x for name, x in values.items()}
    )


def index_of(*tensors: Tensor) -> torch.dtype:
    """The type of these parts of a block, which is the same for all."""
    (index,) = {tensor.dtype for tensor in tensors}
    return index
