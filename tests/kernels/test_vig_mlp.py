"""The C++ kernel's arithmetic, as built here and as built for the plainest machine."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnnhpc.kernels import compile as build
from gnnhpc.kernels import vig_mlp as vig
from gnnhpc.kernels.compile import ARCHITECTURE_VARIABLE as VARIABLE
from gnnhpc.kernels.torch import torch_vig as vig_torch
from gnnhpc.models.context import Context
from gnnhpc.models.vig import reference as models
from tests.tools.rounding import UNIT, assert_within, tolerances

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, build.COMPILERS)), reason="no C++ compiler"
)
EPS = (1e-5, 1e-5)
NAMES = (
    *("fc1.weight", "fc1.bias", "norm1.weight", "norm1.bias"),
    *("conv.lin_root.weight", "conv.lin_rel.weight", "conv.lin_rel.bias"),
    *("fc2.weight", "fc2.bias", "norm2.weight", "norm2.bias"),
)
BUFFERS = [f"{norm}.running_{kind}" for norm in ("norm1", "norm2") for kind in ("mean", "var")]


@pytest.fixture(scope="module", params=["as set", "portable"])
def built(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernel as the environment asks for it, then one for any machine of this one's kind."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "portable":
            if platform.machine() != "x86_64":
                pytest.skip("portable flags are known for x86-64 only")
            patch.setenv(VARIABLE, "x86-64")
        build.load_kernel.cache_clear()
        assert vig.available(), build.kernel_status(vig.KERNEL)
        yield request.param
    build.load_kernel.cache_clear()


def weights(hidden: int, *, conv: bool) -> vig_torch.Weights:
    torch.manual_seed(3)
    square = (torch.randn(hidden, hidden), torch.randn(hidden, hidden), torch.randn(hidden))
    root, relative, bias = square if conv else (None, None, None)
    return vig_torch.Weights(
        *(torch.randn(hidden, 3), torch.randn(hidden), torch.randn(hidden), torch.randn(hidden)),
        *(root, relative, bias),
        *(torch.randn(3, hidden), torch.randn(3), torch.randn(3), torch.randn(3)),
    )


def test_gelu_and_its_slope(built: str) -> None:
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
    exact = u.double().requires_grad_()
    value = F.gelu(exact)
    value.sum().backward()
    bound = u.double().abs().clamp_min(1)
    # 2e-7 by vig/vectors.h, and the roundings of the layers before and after.
    assert float(((result.saved[0][:, 0] - value.detach()).abs() / bound).max()) < 8 * UNIT

    g = torch.zeros_like(x)
    g[:, 0] = 1
    d_x, _ = vig.backward(
        x, (1, len(x)), passing, result.saved, g, (0.0, 0.0), by_batch=False, wants_x=True
    )
    assert d_x is not None
    assert exact.grad is not None
    assert float((d_x[:, 0] - 1 - exact.grad).abs().max()) < 12 * UNIT


@pytest.mark.parametrize("conv", [True, False])
@pytest.mark.parametrize(("count", "grid"), [(1, (3, 3)), (7, (8, 8)), (40, (13, 9))])
@pytest.mark.parametrize("by_batch", [True, False])
def test_is_the_torch_form(
    built: str, conv: bool, count: int, grid: vig_torch.Grid, by_batch: bool
) -> None:
    given = weights(9, conv=conv)
    rows = count * grid[0] * grid[1]
    x, g = torch.rand(rows, 3), torch.randn(rows, 3)
    running = None
    if not by_batch:
        running = vig_torch.Statistics(
            torch.randn(9), torch.rand(9) + 1, torch.randn(3), torch.rand(3) + 1
        )
    ours, theirs = both(x, g, grid, given, running)
    close(ours.out, theirs.out, "out")
    for name, part, other in zip(
        vig_torch.Statistics._fields, ours.statistics, theirs.statistics, strict=True
    ):
        close(part, other, name)
    assert_within(
        ours.gradients, theirs.gradients, allowed(x.double(), g.double(), grid, given, running)
    )


@pytest.mark.parametrize("conv", [True, False])
@pytest.mark.parametrize("by_batch", [True, False])
def test_a_mean_far_above_the_spread(built: str, conv: bool, by_batch: bool) -> None:
    """What the constant and the degree contribute nearly cancels what the mean does."""
    given, grid, rows = weights(101, conv=conv), (8, 8), 5 * 64
    x, g = 10 + torch.randn(rows, 3) / 10, torch.randn(rows, 3)
    running = None
    if not by_batch:
        before = x @ given.w1.t() + given.b1
        running = vig_torch.Statistics(
            before.mean(0), before.var(0), torch.randn(3), torch.rand(3) + 1
        )
    ours, theirs = both(x, g, grid, given, running)
    assert_within(
        ours.gradients, theirs.gradients, allowed(x.double(), g.double(), grid, given, running)
    )


class Found(NamedTuple):
    """A layer's output, the statistics it used, and gradients by name."""

    out: Tensor
    statistics: tuple[Tensor, ...]
    gradients: dict[str, Tensor]


def both(
    x: Tensor,
    g: Tensor,
    grid: vig_torch.Grid,
    given: vig_torch.Weights,
    running: vig_torch.Statistics | None,
) -> tuple[Found, Found]:
    """The kernel's, and those of the torch form in float64."""

    def found(kernel: ModuleType, dtype: torch.dtype) -> Found:
        of = vig_torch.Weights._make(None if w is None else w.to(dtype) for w in given)
        by = running and vig_torch.Statistics._make(part.to(dtype) for part in running)
        inputs = x.to(dtype)
        done = kernel.forward(inputs, grid, of, by, EPS)
        d_x, d_weights = kernel.backward(
            *(inputs, grid, of, done.saved, g.to(dtype), EPS),
            by_batch=running is None,
            wants_x=True,
        )
        named = {name: d for name, d in zip(NAMES, d_weights, strict=True) if d is not None}
        return Found(done.out, done.statistics, {"input": d_x} | named)

    return found(vig, torch.float32), found(vig_torch, torch.float64)


def allowed(
    x: Tensor,
    g: Tensor,
    grid: vig_torch.Grid,
    given: vig_torch.Weights,
    running: vig_torch.Statistics | None,
) -> dict[str, float]:
    """How far off each gradient may be, by the plain layer of the same float64 parameters."""
    named = [*zip(NAMES, given, strict=True), *zip(BUFFERS, running or [None] * 4, strict=True)]
    state = {name: value.double() for name, value in named if value is not None}
    hidden = len(given.b1)

    def make() -> nn.Module:
        layer: nn.Module = models.Ffn(hidden, batchnorm="micro", dtype=torch.float64)
        if given.root is not None:
            layer = models.Grapher(grid, hidden, batchnorm="micro", dtype=torch.float64)
        layer.load_state_dict(state, strict=False)
        return layer.train(running is None)

    def gradients(layer: nn.Module) -> dict[str, Tensor]:
        inputs = x.view(-1, grid[0] * grid[1], 3).clone().requires_grad_()
        layer(inputs, Context()).backward(g.view_as(inputs))
        found = {"input": inputs} | dict(layer.named_parameters())
        return {name: value.grad for name, value in found.items() if value.grad is not None}

    def terms(name: str) -> int:
        return hidden + (0 if name == "input" else min(len(x), vig_torch.PIECE_CPU))

    return tolerances(make, gradients, terms)[1]


def close(ours: Tensor, exact: Tensor, name: str) -> None:
    error = float((ours.double() - exact).abs().max() / exact.abs().max())
    assert error < 1e-5, f"{name}: {error:.1e}"


def test_pointers_need_contiguous_tensors() -> None:
    given = weights(4, conv=False)
    with pytest.raises(ValueError, match="contiguous"):
        vig.forward(torch.rand(3, 16).t(), (4, 4), given, None, EPS)
