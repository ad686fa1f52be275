"""The C++ kernel's arithmetic; `test_instruction_sets` has it built for other machines."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gnnhpc.kernels.vig import torch_vig as vig_torch
from gnnhpc.kernels.vig import vig_mlp as vig

EPS = (1e-5, 1e-5)
UNIT = 2.0**-24
"""The most that a rounding to single precision changes a number of 1."""
pytestmark = pytest.mark.skipif(not vig.available(), reason="no compiled kernel")


def weights(hidden: int, *, conv: bool) -> vig_torch.Weights:
    torch.manual_seed(3)
    square = (torch.randn(hidden, hidden), torch.randn(hidden, hidden), torch.randn(hidden))
    root, relative, bias = square if conv else (None, None, None)
    return vig_torch.Weights(
        *(torch.randn(hidden, 3), torch.randn(hidden), torch.randn(hidden), torch.randn(hidden)),
        *(root, relative, bias),
        *(torch.randn(3, hidden), torch.randn(3), torch.randn(3), torch.randn(3)),
    )


def test_gelu() -> None:
    """One hidden unit that hands channel 0 through: y is GELU of it."""
    one, none = torch.ones(1), torch.zeros(1)
    first = torch.tensor([[1.0, 0.0, 0.0]])
    identity = vig_torch.Statistics(none, one, torch.zeros(3), torch.ones(3))
    passing = vig_torch.Weights(
        *(first, none, one, none),
        *(None, None, None),
        *(first.t().contiguous(), torch.zeros(3), torch.ones(3), torch.zeros(3)),
    )
    u = torch.cat([torch.linspace(-12, 12, 40_001), torch.tensor([-1e30, -100.0, 100.0, 1e30])])
    x = torch.stack([u, torch.zeros_like(u), torch.zeros_like(u)], 1)
    result = vig.forward(x, (1, len(x)), passing, identity, (0.0, 0.0))
    exact = F.gelu(u.double())
    bound = u.double().abs().clamp_min(1)
    # 2e-7 by vig/vectors.h, and the roundings of the layers before and after and of the residual.
    found = result.out[:, 0].double() - u.double()
    assert float(((found - exact).abs() / bound).max()) < 10 * UNIT


def test_the_slope_of_gelu() -> None:
    """Of the same network by the batch, whose normalised inputs go from -12 to 12."""
    u = torch.linspace(-1.7, 1.7, 20_001)
    x, g = torch.stack([u, u.square(), u.sin()], 1), torch.ones(len(u), 3) * u.sign()[:, None]
    scales = (torch.full((1,), 7.0), torch.zeros(1))
    out_of = torch.tensor([[1.0], [0.5], [-2.0]])
    of = vig_torch.Weights(
        *(torch.tensor([[1.0, 0.0, 0.0]]), torch.zeros(1), *scales),
        *(None, None, None),
        *(out_of, torch.zeros(3), torch.ones(3), torch.zeros(3)),
    )
    exact_of = vig_torch.Weights._make(None if w is None else w.double() for w in of)
    found = []
    for kernel, weights_of, dtype in (
        (vig, of, torch.float32),
        (vig_torch, exact_of, torch.float64),
    ):
        inputs, upstream, grid = x.to(dtype), g.to(dtype), (1, len(x))
        saved = kernel.forward(inputs, grid, weights_of, None, EPS).saved
        given = (inputs, grid, weights_of, saved, upstream, EPS)
        found.append(kernel.backward(*given, wants_x=True)[0])
    assert float((found[0] - found[1]).abs().max()) < 40 * UNIT * float(found[1].abs().max())


@pytest.mark.parametrize("conv", [True, False])
@pytest.mark.parametrize(
    ("count", "grid", "mean"), [(1, (3, 3), 0), (40, (13, 9), 0), (5, (8, 8), 10)]
)
@pytest.mark.parametrize("by_batch", [True, False])
def test_is_the_torch_form_in_float64(
    conv: bool, by_batch: bool, count: int, grid: vig_torch.Grid, mean: int
) -> None:
    """Of a mean far above the spread, too, where large numbers nearly cancel."""
    given, rows = weights(9, conv=conv), count * grid[0] * grid[1]
    x, g = mean + torch.randn(rows, 3) / 10, torch.randn(rows, 3)
    running = None
    if not by_batch:
        before = x @ given.w1.t() + given.b1
        running = vig_torch.Statistics(
            before.mean(0), before.var(0), torch.randn(3), torch.rand(3) + 1
        )

    def found(kernel: ModuleType, dtype: torch.dtype) -> list[Tensor]:
        of = vig_torch.Weights._make(None if w is None else w.to(dtype) for w in given)
        by = running and vig_torch.Statistics._make(part.to(dtype) for part in running)
        done = kernel.forward(x.to(dtype), grid, of, by, EPS)
        if done.statistics is None:
            return [done.out]
        d_x, d_weights = kernel.backward(
            *(x.to(dtype), grid, of, done.saved, g.to(dtype), EPS), wants_x=True
        )
        gradients = torch.cat([d.flatten() for d in d_weights if d is not None])
        return [done.out, *done.statistics, d_x, gradients]

    for ours, exact in zip(found(vig, torch.float32), found(vig_torch, torch.float64), strict=True):
        assert float((ours - exact).norm()) < 1e-4 * float(exact.norm())
