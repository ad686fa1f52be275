"""A backward that is not autograd's: same hooks, same gradients, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.engines.autograd import backward
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.stage_pass import StagePass
from gnnhpc.kernels import vig as vig_kernel
from gnnhpc.kernels import vig_layers
from gnnhpc.models.context import Context
from gnnhpc.models.one_call import needs_no_input
from tests.engines.test_one_call import cell, made

needs_kernel = pytest.mark.skipif(not vig_kernel.available(), reason="no compiled kernel")


def doubled(
    gradient: Tensor, *, wants_x: bool = True, told: list[bool] | None = None
) -> Tensor | None:
    """What a stage that doubles its input does with a gradient."""
    if told is not None:
        told.append(torch.is_grad_enabled())
    return 2 * gradient if wants_x else None


def stage_pass(x: Tensor) -> tuple[StagePass, Tensor]:
    output = (2 * x).detach().requires_grad_()
    return StagePass(x, output, lambda g, wants_x: doubled(g, wants_x=wants_x)), output


def leaf() -> Tensor:
    return torch.tensor([1.0, 2.0], requires_grad=True)


def test_hooks_of_input_and_output_are_called_as_autograd_does() -> None:
    found = []
    for by_autograd in (True, False):
        x, order = leaf(), list[str]()
        if by_autograd:
            passed, output = None, 2 * x
        else:
            passed, output = stage_pass(x)
        output.register_hook(lambda g, order=order: order.append("output looks"))
        output.register_hook(lambda g: 3 * g)
        x.register_hook(lambda g: g + 1)
        x.register_hook(lambda g, order=order: order.append(f"input {g.tolist()}"))
        x.register_post_accumulate_grad_hook(lambda p, order=order: order.append("there"))
        gradient = torch.tensor([1.0, 10.0])
        if passed is None:
            backward(output, gradient)
        else:
            passed.backward(output, gradient)
        assert x.grad is not None
        found.append((order, x.grad.tolist()))
    assert found[0] == found[1] == (["output looks", "input [7.0, 61.0]", "there"], [7.0, 61.0])


def test_what_is_made_of_the_output_or_the_input_is_autograds() -> None:
    found = []
    for by_autograd in (True, False):
        x = leaf()
        given = x * x
        if by_autograd:
            passed, output = None, 2 * given
        else:
            passed, output = stage_pass(given)
        loss = (output**2).sum()
        if passed is None:
            backward(loss, None)
        else:
            passed.backward(loss, None)
        found.append(x.grad)
    assert found[0] is not None
    assert found[1] is not None
    assert torch.equal(found[0], found[1])


def test_a_gradient_is_added_to_what_is_there() -> None:
    x = leaf()
    x.grad = torch.ones(2)
    passed, output = stage_pass(x)
    passed.backward(output, torch.ones(2))
    assert x.grad.tolist() == [3.0, 3.0]


def test_an_input_that_needs_no_gradient_has_none() -> None:
    x = torch.ones(2)
    passed, output = stage_pass(x)
    passed.backward(output, torch.ones(2))
    assert x.grad is None


def test_a_loss_that_the_output_is_not_in() -> None:
    x = leaf()
    passed, _ = stage_pass(x)
    passed.backward(leaf().sum(), None)
    assert x.grad is None


def test_it_computes_without_gradients_of_gradients() -> None:
    x, told = leaf(), list[bool]()
    output = (2 * x).detach().requires_grad_()
    passed = StagePass(x, output, lambda g, wants_x: doubled(g, wants_x=wants_x, told=told))
    passed.backward(output, torch.ones(2))
    assert told == [False]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("of", ["input", "output"])
@pytest.mark.parametrize("make", [lambda g: g.double(), lambda g: g[:1]], ids=["type", "shape"])
def test_a_hook_that_makes_another_kind_of_gradient(
    of: str, make: Callable[[Tensor], Tensor]
) -> None:
    """Autograd refuses it; a kernel would read what is not there."""
    for by_autograd in (True, False):
        x = leaf()
        passed, output = (None, 2 * x) if by_autograd else stage_pass(x)
        (output if of == "output" else x).register_hook(make)
        with pytest.raises(RuntimeError, match=r"hook .*(changed|made)"):
            if passed is None:
                backward(output, torch.ones(2))
            else:
                passed.backward(output, torch.ones(2))


def test_a_gradient_of_another_type_becomes_the_outputs() -> None:
    x = leaf()
    passed, output = stage_pass(x)
    passed.backward(output, torch.ones(2, dtype=torch.float64))
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


def test_what_it_refuses() -> None:
    passed, output = stage_pass(leaf())
    with pytest.raises(GnnhpcError, match=r"a gradient of \[3\] was given for \[2\]"):
        passed.backward(output, torch.ones(3))
    passed, output = stage_pass(leaf())
    passed.backward(output, torch.ones(2))
    with pytest.raises(RuntimeError, match="called a second time"):
        passed.backward(output, torch.ones(2))
    x = torch.ones(2)
    passed, output = stage_pass(x)
    x.add_(1.0)
    with pytest.raises(RuntimeError, match="input was changed before its backward"):
        passed.backward(output, torch.ones(2))


@needs_kernel
def test_a_step_makes_no_graph_of_the_stage() -> None:
    parts, batch = made(cell(microbatches=4))
    graphs: list[object] = []
    parts.stage.register_forward_hook(lambda _stage, _given, out: graphs.append(out.grad_fn))
    parts.engine.train_step(batch)
    assert graphs == [None] * 4


@needs_kernel
def test_what_a_forward_saves_is_used_again_once_it_is_done_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not where somebody was shown it: what layers gave stays as it was."""
    saved: list[int] = []
    true = vig_layers.Layers.forward

    def noted(layers: vig_layers.Layers, x: Tensor, *, moves: bool) -> vig_layers.Forward:
        found = true(layers, x, moves=moves)
        saved.append(found.saved.data_ptr())
        return found

    monkeypatch.setattr(vig_layers.Layers, "forward", noted)
    parts, batch = made(cell(microbatches=4))
    parts.engine.train_step(batch)
    assert len(saved) == 4
    assert len(set(saved)) == 1
    shown: list[tuple[Tensor, Tensor]] = []

    def look(_outline: object, _changes: int, _x: Any, output: Any, _context: Context) -> None:
        shown.append((output, output.detach().clone()))

    parts.stage.on_layer.append(look)
    parts.engine.train_step(batch)
    assert len(shown) == 4 * len(parts.stage.layers)
    assert all(torch.equal(output, before) for output, before in shown)
    assert len(set(saved[4:])) == 4


@needs_kernel
@pytest.mark.parametrize("held", [[], [1], [4]])
def test_gradients_put_elsewhere_by_a_forward_hook(held: Sequence[int]) -> None:
    """Of the stage's own hooks none is to do so within a step."""
    parts, batch = made(cell(microbatches=1))
    (microbatch,) = batch.microbatches
    weight = parts.stage.layers[1].get_parameter("fc1.weight")
    assert isinstance(microbatch.inputs, Tensor)

    def step() -> None:
        with parts.stage.one_step(held):
            for _ in range(2):
                output = parts.stage(microbatch.inputs, microbatch.context)
                passed = parts.stage.take_pass(microbatch.context.microbatch)
                assert (passed is None) == (not held)
                backward_of(output.sum(), passed)
                assert weight.grad is not None
                weight.grad = weight.grad.clone()

    with pytest.raises(RuntimeError, match="a gradient was put elsewhere within a step"):
        step()


def backward_of(loss: Tensor, passed: StagePass | None) -> None:
    if passed is None:
        backward(loss, None)
    else:
        passed.backward(loss, None)


@needs_kernel
def test_a_forward_hook_that_needs_no_input_is_given_none() -> None:
    parts, batch = made(cell(microbatches=1))
    last = parts.stage.layers[-1]
    given: list[object] = []

    def look(_layer: nn.Module, args: tuple[Any, ...], _output: Tensor) -> None:
        given.append(args[0])

    last.register_forward_hook(needs_no_input(look))
    parts.engine.train_step(batch)
    assert given == [None]

    def also(_layer: nn.Module, args: tuple[Any, ...], _output: Tensor) -> None:
        given.append(args[0].shape)

    last.register_forward_hook(also)
    parts.engine.train_step(batch)
    assert given[1] is None
    assert given[2] == (8, 64, 3)


def test_stages_of_layers_without_a_call_have_no_pass() -> None:
    stage = Stage([], [], None)
    with stage.one_step([1]):
        assert stage.take_pass(0) is None
