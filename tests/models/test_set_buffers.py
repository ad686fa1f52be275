"""A module takes another's buffers, whatever a forward has made of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.models.set_buffers import copy_into, set_buffers


class Tied(nn.Module):
    """One buffer by two names, an expanded one, one that is not there yet, one in a module."""

    def __init__(self) -> None:
        super().__init__()
        self.a: Tensor
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", self.a)
        self.register_buffer("one", torch.ones(1).expand(3))
        self.register_buffer("late", None)
        self.plain = None
        self.norm = nn.BatchNorm1d(2)


def kept(module: Tied) -> None:
    module.norm.running_mean = torch.tensor([2.0, 3.0])


def written(module: Tied) -> None:
    module.a += 3


def untied(module: Tied) -> None:
    module.a = module.a + 1


def made(module: Tied) -> None:
    module.late = torch.arange(5)
    del module.plain
    module.register_buffer("plain", torch.ones(2, dtype=torch.bfloat16))


def of_another_kind(module: Tied) -> None:
    module.b = torch.tensor([True, False])


def dropped(module: Tied) -> None:
    module.b = None


def of_whole_numbers(module: Tied) -> None:
    module.late = torch.full((2,), torch.iinfo(torch.long).max)


def of_no_number(module: Tied) -> None:
    module.a[:] = torch.nan


DOES = [kept, written, untied, made, of_another_kind, dropped, of_whole_numbers, of_no_number]


def held_by(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_buffers(remove_duplicate=False))


@pytest.mark.parametrize("does", DOES)
def test_it_holds_the_same(does: Callable[[Tied], None]) -> None:
    other, module = Tied(), Tied()
    does(other)
    assert set_buffers(module, held_by(other)) == []
    theirs, ours = held_by(other), held_by(module)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        torch.testing.assert_close(ours[name], value, rtol=0, atol=0, equal_nan=True)
        assert ours[name] is not value
    if does in (kept, written, made, of_no_number):
        assert module.a is module.b, "what is one buffer stays one"


def test_a_buffer_of_two_layers_stays_one() -> None:
    layers, others = nn.Sequential(Tied(), Tied()), nn.Sequential(Tied(), Tied())
    for both in (layers, others):
        both[1].a = both[0].a
    others[0].a.data = torch.ones(6)
    held = {name: value.clone() for name, value in held_by(others).items()}
    assert set_buffers(layers, held) == []
    assert layers[0].a is layers[1].a
    assert torch.equal(layers[1].a, torch.ones(6))


def test_what_has_no_place_is_told() -> None:
    other = Tied()
    other.made = nn.BatchNorm1d(2)
    names = {"made.running_mean", "made.running_var", "made.num_batches_tracked"}
    assert set(set_buffers(Tied(), held_by(other))) == names


def test_an_expanded_buffer_is_written_where_its_numbers_lie() -> None:
    buffer = torch.ones(2, 1, 3).expand(2, 4, 3)
    value = torch.arange(6.0).view(2, 1, 3).expand(2, 4, 3).clone()
    copy_into(buffer, value)
    assert torch.equal(buffer, value)
