"""The readout in one call is torch's: logits, every gradient, on any machine."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.kernels.compile import counted_calls
from gnnhpc.kernels.vig import vig_mlp
from gnnhpc.models.context import Context
from gnnhpc.models.vig.fused import FusedReadout
from gnnhpc.models.vig.reference import Readout
from tests.tools.backends import threads

needs_kernel = pytest.mark.skipif(not vig_mlp.available(), reason="no compiled kernel")
SIZES = [  # images, nodes, width, classes
    (1, 1, 1, 1),
    (3, 7, 5, 2),
    (5, 1024, 1024, 10),
    (17, 33, 65, 3),
    (40, 100, 300, 101),
    (2, 9, 9000, 10),
]


def readouts(width: int, classes: int) -> tuple[nn.Module, nn.Module]:
    """Ours in float32, and torch's of the same numbers in float64."""
    torch.manual_seed(1)
    ours = FusedReadout(width, classes, dtype=torch.float32)
    exact = Readout(width, classes, dtype=torch.float64)
    exact.load_state_dict(ours.state_dict())
    return ours, exact


def images(count: int, nodes: int) -> Tensor:
    return torch.randn(count, nodes, 3, generator=torch.Generator().manual_seed(2)) * 0.1


def results(readout: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Logits and all gradients, in float64."""
    dtype = next(readout.parameters()).dtype
    given = x.detach().to(dtype).requires_grad_()
    logits = readout(given, Context())
    gradient = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
    readout.zero_grad()
    logits.backward(gradient.to(dtype))
    found = {"logits": logits.detach(), "x": given.grad}
    found |= {name: p.grad for name, p in readout.named_parameters()}
    assert all(value is not None and value.dtype == dtype for value in found.values())
    return {name: value.double() for name, value in found.items() if value is not None}


def assert_equal(ours: dict[str, Tensor], exact: dict[str, Tensor], relative: float) -> None:
    assert ours.keys() == exact.keys()
    for name, value in exact.items():
        error = float((ours[name] - value).abs().max() / value.abs().max())
        assert error <= relative, f"{name}: {error:.1e}"


@needs_kernel
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_is_torchs(sizes: tuple[int, int, int, int]) -> None:
    count, nodes, width, classes = sizes
    ours, exact = readouts(width, classes)
    x, called = images(count, nodes), counted_calls()
    assert_equal(results(ours, x), results(exact, x), 1e-6)
    names = {name for _, name in counted_calls() - called}
    assert names == {"vig_readout_forward", "vig_readout_backward"}


@needs_kernel
@pytest.mark.parametrize("width", [1024, 9000])
def test_the_same_bits_on_any_number_of_threads(width: int) -> None:
    found = []
    ours, _ = readouts(width, 10)
    for count in (1, 2, 3):
        with threads(count):
            found.append(results(ours, images(37, 50)))
    for other in found[1:]:
        assert all(torch.equal(other[name], value) for name, value in found[0].items())


@needs_kernel
@pytest.mark.parametrize("u", [-13.0, -9.0, -6.5, -5.0, -1.0, 0.0, 2.0, 7.0, 1e4])
def test_units_far_from_zero_have_their_derivative(u: float) -> None:
    """No BatchNorm keeps them near it; where all are below, it is the layers' whole gradient."""
    weights = vig_mlp.ReadoutWeights(
        torch.eye(3), torch.full((3,), u), torch.ones(1, 3), torch.zeros(1)
    )
    logits, pooled = vig_mlp.readout_forward(torch.zeros(1, 1, 3), weights)
    d_x, _ = vig_mlp.readout_backward(pooled, 1, weights, torch.ones(1, 1), wants_x=True)
    below = 0.5 * math.erfc(-u / math.sqrt(2))
    slope = below + u * math.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    assert d_x is not None
    assert d_x.flatten().tolist() == pytest.approx(3 * [slope], rel=0.01, abs=0)
    assert float(logits) == pytest.approx(3 * u * below, rel=1e-6, abs=1e-6)


@needs_kernel
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_not_hidden(bad: float) -> None:
    ours, _ = readouts(32, 4)
    x = images(3, 8)
    x[1, 5, 2] = bad
    x.requires_grad_()
    logits = ours(x, Context())
    assert logits.isfinite().all(1).tolist() == [True, False, True]
    logits.sum().backward()
    assert not all(p.grad.isfinite().all() for p in ours.parameters() if p.grad is not None)
