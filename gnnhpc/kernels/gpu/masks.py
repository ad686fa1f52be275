"""Launches dropout on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from gnnhpc.kernels import calls
from gnnhpc.kernels.gpu.here import launch, mask_arguments
from gnnhpc.kernels.gpu.programs import masks as programs
from gnnhpc.kernels.mask import Mask

_AT_ONCE = 1024


def drop_rows(x: Tensor, rows: Tensor, mask: Mask) -> Tensor:
    """`x` [n, width] masked and scaled; its rows are `rows` [n] of the full graph."""
    calls.count(calls.TRITON, "drop_rows")
    assert len(rows) == len(x)
    x, rows = x.contiguous(), rows.contiguous()
    out = torch.empty_like(x)
    launch(
        programs.drop_rows,
        (-(-x.numel() // _AT_ONCE),),
        *(x, rows, out, x.numel(), x.shape[1], *mask_arguments(mask)),
        like=x,
        SCALE=mask.scale,
        AT_ONCE=_AT_ONCE,
    )
    return out
