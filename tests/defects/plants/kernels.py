"""Kernels: wrong numbers, wrong only in large tensors, read before they are done."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from gnnhpc.kernels import attention, cpp_aggregate
from gnnhpc.kernels.neighbor_weights import RowSums
from gnnhpc.kernels.vig import vig_mlp
from tests.defects import cells
from tests.defects.defect import around, planted

defect = functools.partial(
    planted, kind="kernels", mechanism="kernel-parity", words="differs from the reference form"
)


@defect(cell=cells.VIG)
def a_kernel_wrong_in_the_third_digit() -> None:
    def off(original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        return result._replace(out=result.out * 1.003)

    def of_stack(original: Any, *args: Any, **kwargs: Any) -> Any:
        out, saved = original(*args, **kwargs)
        return out * 1.003, saved

    around(vig_mlp, "forward", off)
    around(vig_mlp.Stack, "forward", of_stack)


@defect(cell=cells.VIG)
def a_gradient_of_a_kernel_wrong_in_one_parameter() -> None:
    def off(original: Any, *args: Any, **kwargs: Any) -> Any:
        d_x, weights = original(*args, **kwargs)
        weights.gamma1.mul_(1.01)
        return d_x, weights

    def of_stack(original: Any, stack: vig_mlp.Stack, *args: Any, **kwargs: Any) -> Any:
        gammas = [layer.weights.gamma1 for layer in stack.layers]
        before = [None if gamma.grad is None else gamma.grad.clone() for gamma in gammas]
        result = original(stack, *args, **kwargs)
        for gamma, at in zip(gammas, before, strict=True):
            if gamma.grad is not None:
                gamma.grad.add_(gamma.grad - (0 if at is None else at), alpha=0.01)
        return result

    around(vig_mlp, "backward", off)
    around(vig_mlp.Stack, "backward", of_stack)


@defect(cell=cells.LARGE, at=(cpp_aggregate, "sum_rows"))
def the_last_rows_of_large_tensors_left_out(original: Any, *args: Any, **kwargs: Any) -> Tensor:
    out: Tensor = original(*args, **kwargs)
    out[8_192:] = 0
    return out


@defect(cell=cells.LARGE, at=(cpp_aggregate, "sum_rows"))
def a_row_between_two_blocks_added_twice(
    original: Any, x: Tensor, sums: RowSums, *args: Any, **kwargs: Any
) -> Tensor:
    out: Tensor = original(x, sums, *args, **kwargs)
    if sums.number is not None:
        out[4_096:4_097] *= 2
    return out


@defect(cell=cells.LARGE, at=(cpp_aggregate, "sum_rows"))
def an_index_that_overflows_in_large_tensors(original: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Imitated with 2^20 elements in place of 2^31: later ones are written from the start on."""
    out: Tensor = original(*args, **kwargs)
    flat = out.reshape(-1).clone()
    beyond = flat[2**20 : 2**21].clone()
    flat[2**20 :] = 0
    flat[: len(beyond)] = beyond
    return out.copy_(flat.view_as(out))


@defect(cell=cells.GAT)
def a_result_read_before_its_kernel_is_done() -> None:
    """Imitated: the last rows are still those of the call before, or were never written."""
    before: dict[torch.Size, Tensor] = {}

    def early(original: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        written = out.clone()
        out[-8:] = before.get(out.shape, torch.zeros_like(out))[-8:]
        before[out.shape] = written
        return out

    around(attention._Attention, "forward", early)
