"""The C++ kernel's arithmetic, as built here and as built for the plainest machine."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gnnhpc.kernels import build, vig, vig_torch

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, build.COMPILERS)), reason="no C++ compiler"
)
EPS = (1e-5, 1e-5)


@pytest.fixture(scope="module", params=["native", "portable"])
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The kernel for this machine, then one that any machine of its kind could run."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "portable":
            if platform.machine() != "x86_64":
                pytest.skip("portable flags are known for x86-64 only")
            plain = tuple(flag.replace("native", "x86-64") for flag in build.FLAGS)
            patch.setattr(build, "FLAGS", plain)
            cache: Path = tmp_path_factory.mktemp("cache")
            patch.setenv("GNNHPC_KERNEL_CACHE", str(cache))
        build.load_kernel.cache_clear()
        assert vig.available(), build.kernel_status("vig")
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


def test_names_its_vectors(built: str) -> None:
    names = {"avx512", "avx2", "portable"}
    assert vig.instructions() in (names if built == "native" else {"portable"})


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
    assert float(((result.saved[0][:, 0] - value.detach()).abs() / bound).max()) < 3e-7

    g = torch.zeros_like(x)
    g[:, 0] = 1
    d_x, _ = vig.backward(
        x, (1, len(x)), passing, result.saved, g, (0.0, 0.0), by_batch=False, wants_x=True
    )
    assert d_x is not None
    assert exact.grad is not None
    assert float((d_x[:, 0] - 1 - exact.grad).abs().max()) < 4e-7


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
    ours = vig.forward(x, grid, given, running, EPS)
    wide = vig_torch.Weights._make(None if w is None else w.double() for w in given)
    wide_running = running and vig_torch.Statistics._make(part.double() for part in running)
    exact = vig_torch.forward(x.double(), grid, wide, wide_running, EPS)
    close(ours.out, exact.out, "out")
    for name, part, other in zip(
        vig_torch.Statistics._fields, ours.statistics, exact.statistics, strict=True
    ):
        close(part, other, name)

    d_x, d_weights = vig.backward(
        x, grid, given, ours.saved, g, EPS, by_batch=by_batch, wants_x=True
    )
    e_x, e_weights = vig_torch.backward(
        x.double(), grid, wide, exact.saved, g.double(), EPS, by_batch=by_batch, wants_x=True
    )
    close(d_x, e_x, "x")
    for name, d, e in zip(vig_torch.Weights._fields, d_weights, e_weights, strict=True):
        if by_batch and name in {"b1", "b2"}:
            assert d is not None
            assert float(d.abs().max()) < 1e-3
        else:
            close(d, e, name)


def close(ours: Tensor | None, exact: Tensor | None, name: str) -> None:
    assert (ours is None) == (exact is None), name
    if ours is not None and exact is not None:
        error = float((ours.double() - exact).abs().max() / exact.abs().max())
        assert error < 1e-5, f"{name}: {error:.1e}"


def test_pointers_need_contiguous_tensors() -> None:
    given = weights(4, conv=False)
    with pytest.raises(ValueError, match="contiguous"):
        vig.forward(torch.rand(3, 16).t(), (4, 4), given, None, EPS)
