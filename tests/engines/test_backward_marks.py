"""Where each layer's backward begins, also where layers change in place what they were given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.check.watches.layer_backwards import LayerBackwards
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.engines.autograd import backward
from gnnhpc.engines.clock import Clock
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.models.context import Context

WIDTH = 6
Forward = Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]
"""A layer's, given its input and what tells when the backward passes there."""


def _add_in_place(x: Tensor, works: Callable[[Tensor], Tensor]) -> Tensor:
    x += works(x.clone().tanh())
    return x


def _energy(x: Tensor, works: Callable[[Tensor], Tensor]) -> Tensor:
    """As of forces: its gradient by the input."""
    with torch.enable_grad():
        given = x if x.requires_grad else x.detach().requires_grad_()
        energy = given.tanh().square().sum()
        (gradient,) = torch.autograd.grad(energy, given, create_graph=True)
    return works(x + gradient)


KINDS: dict[str, Forward] = {
    "plain": lambda x, works: works(x.tanh()),
    "handed on": lambda x, works: x,
    "view": lambda x, works: works(x.tanh()).view(-1, 2, WIDTH // 2).flatten(1),
    "view of what is given": lambda x, works: x.view(-1, 2, WIDTH // 2).flatten(1),
    "doubled in place": lambda x, works: x.mul_(2.0),
    "+=": _add_in_place,
    "in place, another output": lambda x, works: works(x.mul_(2.0).tanh()),
    "energy": _energy,
}


class _Passes(torch.autograd.Function):
    """Tells its name when the backward passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, log: list[str], name: str) -> Tensor:
        ctx.log, ctx.name = log, name
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.log.append(f"{ctx.name} works")
        return gradient, None, None


class _Layer(nn.Module):
    def __init__(self, forward: Forward, log: list[str], name: str) -> None:
        super().__init__()
        self._forward, self._log, self._name = forward, log, name

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self._forward(x, lambda y: _Passes.apply(y, self._log, self._name))  # type: ignore[no-untyped-call, no-any-return]


def _passed(kinds: Sequence[str]) -> list[str]:
    """What one backward through layers of these kinds did, in order."""
    log: list[str] = []
    timer = StepTimer(Clock(torch.device("cpu")))
    timer.layer_backward = lambda name, at: log.append(f"{name} begins")  # type: ignore[method-assign]
    names = [f"{n} {kind}" for n, kind in enumerate(kinds)]
    outlines = [LayerSpec(name, (WIDTH,), (WIDTH,)) for name in names]
    layers = [_Layer(KINDS[kind], log, name) for name, kind in zip(names, kinds, strict=True)]
    stage = Stage(outlines, layers, timer)
    given = torch.randn(4, WIDTH, requires_grad=True)
    # As a received activation it is no leaf for the layers.
    backward(stage(given.clone(), Context(0, 0)).sum(), None)
    assert log
    return log


WITHOUT_BACKWARD = ("handed on", "view of what is given")
"""Or whose backward is within the next one's, where that changes the view in place."""


@pytest.mark.parametrize("last", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_layer_s_backward_is_marked_in_turn(kind: str, last: str) -> None:
    for before in KINDS:
        _is_marked_in_turn(["plain", before, kind, last])


def _is_marked_in_turn(kinds: Sequence[str]) -> None:
    log, begun = _passed(kinds), len(kinds)
    for name, what in (each.rsplit(" ", 1) for each in log):
        number = int(name.split(" ")[0])
        if what == "begins":
            assert number < begun, log
            begun = number
        else:
            assert number == begun, log
    begin = {n for n, kind in enumerate(kinds) if f"{n} {kind} begins" in log}
    assert begin >= {n for n, kind in enumerate(kinds) if kind not in WITHOUT_BACKWARD}, log
    assert not begin & {n for n, kind in enumerate(kinds) if kind == "handed on"}, log


class _Table(nn.Module):
    """As of a graph without features."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, WIDTH))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.table


@pytest.mark.parametrize("watched", [False, True])
def test_a_layer_that_gives_its_parameter_keeps_no_hooks(*, watched: bool) -> None:
    timer, begins = StepTimer(Clock(torch.device("cpu"))), []
    timer.layer_backward = lambda name, at: begins.append(name)  # type: ignore[method-assign]
    outlines = [LayerSpec(name, (WIDTH,), (WIDTH,)) for name in ("table", "plain")]
    table = _Table()
    stage = Stage(outlines, [table, _Layer(KINDS["plain"], [], "plain")], timer)
    watch = LayerBackwards(stage)
    for _ in range(3):
        if watched:
            watch.attach()
        with torch.no_grad():
            stage(torch.ones(4, WIDTH), Context(0, 0))
        backward(stage(torch.ones(4, WIDTH), Context(0, 0)).sum(), None)
        watch.detach()
        assert begins == ["plain", "table"]
        begins.clear()
        assert not table.table._backward_hooks
        if watched:
            seen = {each.names: each.most_s for each in watch.seen()}
            assert all(seen[name,] > 0 for name in ("plain", "table"))
