"""Parameters that are moved, by how much the loss grows there, and put back to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.check.slope.directions import (
    BESIDE,
    MOST_MORE,
    Point,
    along_gradient,
    elsewhere,
    random_signs,
)


def parameters() -> list[nn.Parameter]:
    """Of other sizes, with gradients of other lengths: one zero, and one none."""
    generator = torch.Generator().manual_seed(3)
    found = [nn.Parameter(torch.randn(n, 4, generator=generator) * n) for n in (2, 3, 5)]
    found.append(nn.Parameter(torch.zeros(6)))
    for parameter, length in zip(found, (1.0, 1e-6, 0.0, None), strict=True):
        if length is not None:
            parameter.grad = torch.randn(parameter.shape, generator=generator) * length
    return found


def size(x: Tensor) -> float:
    return float(x.detach().square().mean().sqrt())


@pytest.mark.parametrize("number", [0, 1])
def test_a_move_tells_by_how_much_the_loss_grows(number: int) -> None:
    moved = parameters()
    before = [p.detach().clone() for p in moved]
    point = Point(moved)
    direction = along_gradient(point)[0] if number == 0 else random_signs(point, 7)[0]
    larger, count = direction.move(1e-2)
    by = [p.detach().double() - b.double() for p, b in zip(moved, before, strict=True)]
    expected = sum(
        float((p.grad.double() * d).sum())
        for p, d in zip(moved, by, strict=True)
        if p.grad is not None
    )
    assert larger == pytest.approx(expected, rel=1e-12)
    assert count == sum(int(d.count_nonzero()) for d in by) > 0
    point.put_back()
    assert all(torch.equal(p, b) for p, b in zip(moved, before, strict=True))


def test_along_the_gradient_each_parameter_moves_by_a_share_of_its_length() -> None:
    moved = parameters()
    point = Point(moved)
    direction, steepness = along_gradient(point)
    direction.move(1e-3)
    for n, p in enumerate(moved):
        by = float((p.detach() - point.before[n]).norm() / point.before[n].norm().clamp(min=1e-9))
        assert by == pytest.approx(1e-3 if n < 2 else 0.0, rel=1e-3)
    assert steepness == pytest.approx(
        sum(float(p.grad.norm() * b.norm()) for p, b in zip(moved[:2], point.before, strict=False)),
        rel=1e-5,
    )


def test_signs_move_what_the_gradient_lacks_too_and_what_is_near_zero() -> None:
    moved = parameters()
    point = Point(moved)
    direction, square = random_signs(point, 7)
    direction.move(1e-3)
    sizes = [size(b) for b in point.before]
    mean = sum(sizes) / len(sizes)
    for n, more in enumerate((1.0, MOST_MORE, MOST_MORE, MOST_MORE)):
        by = (moved[n].detach() - point.before[n]).abs()
        assert torch.allclose(by, by.new_tensor(1e-3 * more * max(sizes[n], mean)), rtol=1e-2)
    lengths = [0.0 if g is None else float(g.norm()) for g in point.gradients]
    expected = (max(sizes[0], mean) * lengths[0]) ** 2
    expected += (MOST_MORE * max(sizes[1], mean) * lengths[1]) ** 2
    assert square == pytest.approx(expected, rel=1e-5)
    other, _ = random_signs(point, 8)
    assert any(
        not torch.equal(a, b) for a, b in zip(direction.patterns, other.patterns, strict=True)
        if a is not None and b is not None
    )  # fmt: skip


def test_elsewhere_is_beside_and_ends() -> None:
    moved = parameters()
    point = Point(moved)
    with elsewhere(point, 5):
        by = (moved[3].detach() - point.before[3]).abs()
        mean = sum(size(b) for b in point.before) / 4
        assert torch.allclose(by, by.new_tensor(BESIDE * mean))
    assert all(torch.equal(p, b) for p, b in zip(moved, point.before, strict=True))
