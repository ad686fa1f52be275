"""What rounding may make of a user's own layers, drawn by their own operations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gnnhpc.check.own_draws import RoundedOperations, own_draws
from gnnhpc.check.twin.forward_rounding import ForwardRounding

EPS = torch.finfo(torch.float32).eps
X = torch.rand(50, 3, generator=torch.Generator().manual_seed(1)) + 0.5


class Layers:
    """In the place of a user's: what is drawn of them is what they compute."""

    def rounded(self, rounding: ForwardRounding | None) -> Layers:
        return self


def drawn(compute: Callable[[Tensor], Tensor]) -> list[Tensor]:
    exact = compute(X)
    draws = own_draws(Layers(), lambda _: compute(X), exact, lambda x: [[x]])  # type: ignore[arg-type]
    assert draws.first is exact
    return [(each - exact) for each in draws.more]


def test_an_operation_is_off_by_one_rounding() -> None:
    for away in drawn(lambda x: x * 3.0):
        relative = away / (X * 3.0) / EPS
        assert 0.4 < float(relative.abs().min()) <= float(relative.abs().max()) < 2.1


def test_what_cancels_is_off_by_what_it_is_left_of() -> None:
    for away in drawn(lambda x: (x * 1000.0 + 1.0) - x * 1000.0):
        assert 1e-5 < float(away.abs().max()) < 1e-3


def test_gradients_are_off_too() -> None:
    def compute(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(leaf.square().sum(), leaf)
        return gradient

    assert all(float(away.abs().max()) > 0 for away in drawn(compute))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: (x * 0.0 + 4.0).long().float(),
        lambda x: X[(x[:, 0] * 0.0 + 49.0).long() + 1 - (x[:, 0] * 0.0 + 1.0).long()],
        lambda x: x * float("inf"),
        lambda x: x + 1e-3 * (x * 1.0 == (x * 1.0).amax(1, True)),
        lambda x: torch.where(x * 1.0 >= (x * 1.0).topk(2, 1).values[:, -1:], x, x * 1.001),
        lambda x: x + 1e-3 * (x * 0.0 + 2.0).floor(),
    ],
    ids=["counts", "rows", "no numbers", "equal", "winners", "floor"],
)
def test_what_is_not_rounding_allows_no_more_than_that(compute: Callable[[Tensor], Tensor]) -> None:
    for away in drawn(compute):
        assert float(away.nan_to_num().abs().max()) < 1e-6


def test_views_and_what_is_written_in_place_stay_theirs() -> None:
    kept = torch.ones(4)
    with RoundedOperations(ForwardRounding(0)):
        view = kept[1:].view(3)
        view.add_(1.0)
        whole = torch.arange(3)
    assert kept.tolist() == [1.0, 2.0, 2.0, 2.0]
    assert view.data_ptr() == kept.data_ptr() + 4
    assert whole.tolist() == [0, 1, 2]
