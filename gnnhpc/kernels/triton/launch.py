"""Whether Triton's kernels can compute on a tensor, and how they take masks and sizes."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gnnhpc.kernels.dropout_mask import Mask

_EDGES = 32
"""The most numbers of a row that a program reads at once."""
_BYTES = 8192
"""That a warp holds of them, 256 a thread: with fewer, or with more warps, programs were slower on
an H100, with 100 edges a row; what registers cannot hold is written to memory."""


def is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def why_not() -> str:
    """Why programs do not run on this process's GPU, in a line; empty where they do.

    One is run: Triton wants a C compiler, Python's headers, a folder to write to and a GPU that is
    not too old, and has an error of its own for each.
    """
    if not is_installed():
        return "triton is not installed"
    import triton

    if triton.knobs.runtime.interpret:
        return "triton interprets its programs, on a CPU: TRITON_INTERPRET is set"
    try:
        from gnnhpc.kernels.triton import programs

        x = torch.ones(1, 1, device="cuda")
        programs.drop_rows[(1,)](x, x.long(), x, 1, 1, 0, 0, 0, SCALE=1.0, AT_ONCE=1024)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        words = str(error).strip() or type(error).__name__
        return f"no program of triton's runs here: {words.splitlines()[0]}"
    return ""


def status() -> dict[str, str]:
    """The note for records: what is known of it by now."""
    if not why_not.cache_info().currsize:
        return {}
    return {"triton": why_not() or "runs"}


def launch(program: Any, grid: tuple[int, ...], *args: Any, like: Tensor, **constants: Any) -> None:
    """Run so many of a program, none of an empty grid, on the device of `like`: Triton's own choice
    is the current device, wherever tensors lie."""
    if not all(grid):
        return
    place = torch.cuda.device(like.device) if like.is_cuda else contextlib.nullcontext()
    with place:
        program[grid](*args, **constants)


def mask_arguments(mask: Mask | None) -> tuple[int | Tensor, ...]:
    """Both keys and the threshold as signed numbers; without a mask, of one that keeps all. Keys
    that lie on the device stay there."""
    if mask is None:
        return 0, 0, 0
    keys = (
        each if isinstance(each, Tensor) else signed(each) for each in (mask.first, mask.second)
    )
    return *keys, signed(mask.threshold)


def signed(number: int) -> int:
    """A number of 32 bits with its last bit as the sign: Triton takes a larger number for one of 64
    bits, and compiles for that again."""
    return number - 2**32 if number >= 2**31 else number


def power_of_two(count: int) -> int:
    """The least that is no less: Triton's tensors have such sizes."""
    return 1 << max(0, count - 1).bit_length()


def at_once(numbers: int, dtype: torch.dtype) -> int:
    """Edges of a row that are read at once, of so many numbers each, a power of two: the same for
    all blocks, as another one would add in another order, and be compiled while steps are timed.
    """
    return max(1, min(_EDGES, _BYTES // (numbers * dtype.itemsize)))


def warps(numbers: int, dtype: torch.dtype) -> int:
    """Warps for a program that holds so many numbers, a power of two."""
    return max(1, min(8, numbers * dtype.itemsize // _BYTES))


def attention_sizes(x: Tensor) -> dict[str, int]:
    """Sizes of the programs for features [rows, H, C], each of which reads some edges of a row at
    once."""
    _, heads, channels = x.shape
    padded = {"HEADS": power_of_two(heads), "CHANNELS": power_of_two(channels)}
    numbers = padded["HEADS"] * padded["CHANNELS"]
    edges = at_once(numbers, x.dtype)
    of_program = {"EDGES": edges, "num_warps": warps(edges * numbers, x.dtype)}
    return {"H": heads, "C": channels, **padded, **of_program}
