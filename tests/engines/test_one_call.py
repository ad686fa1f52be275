"""Layers that one call computes: the same step to the bit as layer by layer, with times of each."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.batches.batch import Batch
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels import vig as vig_kernel
from gnnhpc.kernels import vig_layers
from gnnhpc.models.one_call import InOneCall, needs_no_input, neighbours
from gnnhpc.models.vig.fused import FusedFfn, FusedGrapher
from gnnhpc.models.vig.readout import FusedReadout
from gnnhpc.training.setup import TrainingParts, set_up
from tests.tools.cells import vig

pytestmark = pytest.mark.skipif(not vig_kernel.available(), reason="no compiled kernel")
SETTINGS: list[dict[str, Any]] = [
    {"microbatches": 1},
    {"microbatches": 4},
    {"microbatches": 4, "activation_checkpointing": "always"},
    {"microbatches": 4, "batchnorm": "deferred"},
]
settings = pytest.mark.parametrize("given", SETTINGS, ids=str)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many images each call had."""
    found: list[int] = []
    true = vig_layers.Layers.forward

    def counted(layers: vig_layers.Layers, x: Tensor, *, moves: bool) -> vig_layers.Forward:
        found.append(len(x))
        return true(layers, x, moves=moves)

    monkeypatch.setattr(vig_layers.Layers, "forward", counted)
    yield found


def made(experiment: Experiment) -> tuple[TrainingParts, Batch]:
    parts = set_up(experiment, Mesh(Layout(), 0, torch.device("cpu")), None)
    parts.stage.train()
    with parts.batches.open("train", 0, 1) as batches:
        return parts, next(batches)


def cell(**given: Any) -> Experiment:
    return vig(batch_size=8, train_steps=10, **given)


def train(experiment: Experiment, change: Callable[[TrainingParts], None] | None = None) -> Any:
    """Outputs, losses, gradients and buffers of two steps."""
    parts, batch = made(experiment)
    if change is not None:
        change(parts)
    found: list[Tensor] = []
    for _ in range(2):
        given = parts.engine.train_step(batch)
        parts.stage.end_minibatch()
        found += [*given.outputs, *given.losses]
    found += [p.grad for p in parts.stage.parameters() if p.grad is not None]
    return [each.clone() for each in (*found, *parts.stage.buffers())]


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (FusedFfn, FusedGrapher, FusedReadout):
        monkeypatch.setattr(kind, "prepare_call", staticmethod(lambda *_: None))


@settings
def test_a_step_is_the_same_to_the_bit(
    given: dict[str, Any], calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = train(cell(**given))
    again = 2 if "checkpoint" in given else 1
    # Deferred statistics are BatchNorm's own to move: there layers are called one by one.
    expected = 0 if "batchnorm" in given else 2 * given["microbatches"] * again
    assert calls == [8 // given["microbatches"]] * expected
    one_by_one(monkeypatch)
    for ours, theirs in zip(together, train(cell(**given)), strict=True):
        assert torch.equal(ours, theirs)
    assert len(calls) == expected


def test_each_layer_is_told_its_seconds() -> None:
    parts, batch = made(cell(microbatches=4))
    timer = parts.timer
    timer.start()
    parts.engine.train_step(batch)
    times = timer.stop()
    assert list(times.layers) == [layer.name for layer in parts.outlines]
    assert all(min(seconds) > 0 for seconds in times.layers.values())
    for of, span in enumerate(("forward", "backward")):
        assert sum(seconds[of] for seconds in times.layers.values()) <= times.total(span)


def test_a_calls_times_are_those_of_their_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five layers the first four take 1, 2, 4 and 8 s forward, the last four back."""
    forward, backward = vig_layers.Layers.forward, vig_layers.Layers.backward

    def told_forward(*args: Any, **kwargs: Any) -> vig_layers.Forward:
        now = time.perf_counter()
        return forward(*args, **kwargs)._replace(ended_s=[now + n for n in (1, 3, 7, 15, 15)])

    def told_backward(*args: Any, **kwargs: Any) -> Any:
        now = time.perf_counter()
        return backward(*args, **kwargs)[0], [now + n for n in (15, 15, 7, 3, 1)]

    monkeypatch.setattr(vig_layers.Layers, "forward", told_forward)
    monkeypatch.setattr(vig_layers.Layers, "backward", told_backward)
    parts, batch = made(cell(microbatches=1))
    parts.timer.start()
    parts.engine.train_step(batch)
    found = list(parts.timer.stop().layers.values())
    assert [round(forward) for forward, _ in found[:4]] == [1, 2, 4, 8]
    assert [round(backward) for _, backward in found[:0:-1]] == [1, 2, 4, 8]


def test_layers_are_told_to_who_looks_at_them(calls: list[int]) -> None:
    """Every input and output, and by hooks the first input and the last output."""
    parts, batch = made(cell(microbatches=2))
    first, *_, last = parts.stage.layers
    told: list[tuple[str, Tensor, Tensor]] = []
    parts.stage.on_layer.append(
        lambda layer, _changes, x, output, _context: told.append((layer.name, x, output))
    )
    hooked: list[Tensor] = []
    first.register_forward_pre_hook(lambda _layer, given: hooked.append(given[0]))
    last.register_forward_hook(lambda _layer, _given, output: hooked.append(output))
    parts.engine.train_step(batch)
    assert len(calls) == 2
    assert [name for name, *_ in told] == 2 * [layer.name for layer in parts.outlines]
    for (_, _, output), (_, x, _) in itertools.pairwise(told[:5]):
        assert torch.equal(output, x)
    assert hooked[0] is told[0][1]
    assert hooked[1] is told[4][2]


def _between(parts: TrainingParts) -> None:
    parts.stage.layers[1].register_forward_hook(lambda _layer, _given, output: 2 * output)


def _frozen(parts: TrainingParts) -> None:
    weight = parts.stage.layers[1].get_parameter("fc1.weight")
    weight.requires_grad_(False)
    weight.grad = None


def _changed_gradient(parts: TrainingParts) -> None:
    parts.stage.layers[2].get_parameter("fc1.weight").register_hook(lambda gradient: 2 * gradient)


def _in_evaluation(parts: TrainingParts) -> None:
    parts.stage.layers[0].eval()


class Doubled(FusedFfn):
    def forward(self, x: Tensor, context: Any) -> Tensor:
        return 2 * super().forward(x, context)


def _subclass(parts: TrainingParts) -> None:
    parts.stage.layers[1].__class__ = Doubled


def _before_the_readout(parts: TrainingParts) -> None:
    parts.stage.layers[-1].register_forward_pre_hook(lambda _layer, given: (2 * given[0], given[1]))


def _frozen_readout(parts: TrainingParts) -> None:
    weight = parts.stage.layers[-1].get_parameter("fc2.weight")
    weight.requires_grad_(False)
    weight.grad = None


def _readout_without_bias(parts: TrainingParts) -> None:
    parts.stage.layers[-1].get_submodule("fc1").bias = None


class OwnReadout(FusedReadout):
    def forward(self, x: Tensor, context: Any) -> Tensor:
        return 2 * super().forward(x, context)


def _own_readout(parts: TrainingParts) -> None:
    parts.stage.layers[-1].__class__ = OwnReadout


@pytest.mark.parametrize(
    "change",
    [
        *(_between, _frozen, _changed_gradient, _in_evaluation, _subclass),
        *(_before_the_readout, _frozen_readout, _readout_without_bias, _own_readout),
    ],
)
def test_layers_that_need_more_are_called_one_by_one(
    change: Callable[[TrainingParts], None], calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = cell(microbatches=2)
    plain, ours = train(experiment), train(experiment, change)
    assert len(calls) == 4, "those of the plain step"
    one_by_one(monkeypatch)
    theirs = train(experiment, change)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(ours, plain, strict=False))


def test_a_hook_that_changes_what_a_call_is_given_or_gives(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(parts: TrainingParts) -> None:
        first, *_, last = parts.stage.layers
        first.register_forward_pre_hook(lambda _layer, given: (2 * given[0], *given[1:]))
        last.register_forward_hook(lambda _layer, _given, output: output + 1)

    ours = train(cell(microbatches=2), change)
    assert len(calls) == 4
    one_by_one(monkeypatch)
    theirs = train(cell(microbatches=2), change)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_an_input_that_a_call_does_not_take(calls: list[int]) -> None:
    """Hooks are called once, by the layer itself, which says what is wrong."""
    parts, batch = made(cell(microbatches=1))
    (microbatch,) = batch.microbatches
    told: list[int] = []
    parts.stage.layers[0].register_forward_pre_hook(lambda _layer, given: told.append(1))
    images = torch.rand(2, 64, 3, dtype=torch.float64)
    with parts.stage.one_step(1), pytest.raises((ValueError, RuntimeError)):
        parts.stage(images[:, :60], microbatch.context)
    assert told == [1]
    with parts.stage.one_step(1), pytest.raises(ValueError, match="no input of these layers"):
        parts.stage.layers[0].register_forward_pre_hook(lambda _layer, given: (images, *given[1:]))
        parts.stage(images.float(), microbatch.context)
    assert calls == []


def test_a_gradient_put_elsewhere_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(parts: TrainingParts) -> None:
        weight = parts.stage.layers[1].get_parameter("fc1.weight")

        def taken(parameter: Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad = parameter.grad.clone()

        weight.register_post_accumulate_grad_hook(taken)

    ours = train(cell(microbatches=4), change)
    one_by_one(monkeypatch)
    theirs = train(cell(microbatches=4), change)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", ["fc1.weight", "norm1.bias"])
@pytest.mark.parametrize("layer", [1, 4], ids=["ffn", "readout"])
def test_a_weight_changed_within_a_step(layer: int, name: str) -> None:
    parts, batch = made(cell(microbatches=2))
    name = "fc2.bias" if layer == 4 else name
    weight = parts.stage.layers[layer].get_parameter(name)

    def change(_layer: nn.Module, _given: Any, _output: Any) -> None:
        with torch.no_grad():
            weight.add_(1.0)

    parts.stage.layers[-1].register_forward_hook(change)
    with pytest.raises(RuntimeError, match="a weight was changed within a step"):
        parts.engine.train_step(batch)


def test_a_weight_put_elsewhere_within_a_step() -> None:
    parts, batch = made(cell(microbatches=2))
    weight = parts.stage.layers[1].get_parameter("fc1.weight")

    def change(_layer: nn.Module, _given: Any, _output: Any) -> None:
        weight.data = weight.data + 1.0

    parts.stage.layers[-1].register_forward_hook(change)
    with pytest.raises(RuntimeError, match="a weight was changed within a step"):
        parts.engine.train_step(batch)


def _exchanged(layer: nn.Module) -> None:
    weight = layer.get_parameter("fc1.weight")
    other = nn.Parameter(weight.detach().clone())
    other.grad = torch.zeros_like(other)
    layer.get_submodule("fc1").weight = other


def _frozen_now(layer: nn.Module) -> None:
    layer.get_parameter("fc1.weight").requires_grad_(False)


def _hooked_now(layer: nn.Module) -> None:
    layer.get_parameter("fc1.weight").register_hook(lambda gradient: 2 * gradient)


def _told_now(layer: nn.Module) -> None:
    layer.get_parameter("fc1.weight").register_post_accumulate_grad_hook(lambda _weight: None)


def _other_eps(layer: nn.Module) -> None:
    layer.get_submodule("norm1").eps = 1e-3


def _other_momentum(layer: nn.Module) -> None:
    layer.get_submodule("norm1").momentum = 0.01


def _evaluates_now(layer: nn.Module) -> None:
    layer.eval()


def _other_forward(layer: nn.Module) -> None:
    layer.__class__ = Doubled


@pytest.mark.parametrize(
    "change",
    [
        *(_exchanged, _frozen_now, _hooked_now, _told_now),
        *(_other_eps, _evaluates_now, _other_forward),
    ],
)
@pytest.mark.parametrize("watched", [False, True])
def test_a_layer_changed_within_a_step(
    change: Callable[[nn.Module], None], *, watched: bool
) -> None:
    """Its call, which was prepared before, would go on as it was; with parameters told or not."""
    parts, batch = made(cell(microbatches=2))
    parts.engine.train_step(batch)
    if watched:
        weight = parts.stage.layers[0].get_parameter("fc1.weight")
        weight.register_post_accumulate_grad_hook(lambda _weight: None)
    parts.stage.register_forward_hook(lambda *_: change(parts.stage.layers[1]))
    with pytest.raises(RuntimeError, match="a layer was changed within a step"):
        parts.engine.train_step(batch)


def test_hooks_that_end_or_take_gradients_away_within_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They change no layer."""

    def change(parts: TrainingParts) -> None:
        once = parts.stage.layers[1].get_parameter("fc1.weight")
        handle = once.register_post_accumulate_grad_hook(lambda _weight: handle.remove())
        taken = parts.stage.layers[0].get_parameter("fc1.weight")
        taken.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))

    ours = train(cell(microbatches=4), change)
    one_by_one(monkeypatch)
    theirs = train(cell(microbatches=4), change)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def _transposed(layer: nn.Module) -> None:
    weight = layer.get_parameter("fc1.weight")
    assert weight.grad is not None
    weight.grad = weight.grad.t().contiguous().t()


@pytest.mark.parametrize("change", [_transposed, _frozen_now, _other_eps, _told_now])
@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("changed", [0, 3])
@pytest.mark.parametrize("cut", [False, True])
def test_a_layer_changed_for_the_next_step(
    change: Callable[[nn.Module], None],
    microbatches: int,
    changed: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    cut: bool,
) -> None:
    """By a hook of the step's last gradients, after all that the step does, whichever call the
    layer belongs to."""

    def one_step() -> list[Tensor]:
        parts, batch = made(cell(microbatches=microbatches))
        if cut:
            parts.stage.cut_calls(microbatches - 1, [2, 4])
        layer, told = parts.stage.layers[changed], list[int]()

        def last(_weight: Tensor) -> None:
            told.append(1)
            if len(told) == microbatches:
                change(layer)

        first = parts.stage.layers[0].get_parameter("fc1.weight")
        first.register_post_accumulate_grad_hook(last)
        parts.engine.train_step(batch)
        assert len(told) == microbatches
        return [p.grad for p in parts.stage.parameters() if p.grad is not None]

    ours = one_step()
    one_by_one(monkeypatch)
    assert all(torch.equal(a, b) for a, b in zip(ours, one_step(), strict=True))


@pytest.mark.parametrize("change", [_other_eps, _other_momentum])
def test_a_layer_changed_after_its_last_forward(
    change: Callable[[nn.Module], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a hook of that forward: a backward goes back through what was computed."""

    def two_steps() -> list[Tensor]:
        def changing(parts: TrainingParts) -> None:
            seen: list[int] = []

            def forward_hook(*_: Any) -> None:
                seen.append(1)
                if len(seen) == 4:
                    change(parts.stage.layers[1])

            parts.stage.register_forward_hook(forward_hook)

        return list(train(cell(microbatches=4), changing))

    ours = two_steps()
    one_by_one(monkeypatch)
    assert all(torch.equal(a, b) for a, b in zip(ours, two_steps(), strict=True))


@pytest.mark.parametrize("change", [_other_eps, _frozen_now])
def test_a_layer_changed_before_it_is_computed_again(change: Callable[[nn.Module], None]) -> None:
    parts, batch = made(cell(microbatches=2, activation_checkpointing="always"))
    calls: list[int] = []

    def goes_back(_gradient: Tensor) -> None:
        calls.append(1)
        change(parts.stage.layers[1])

    def last(_stage: nn.Module, _given: Any, output: Tensor) -> None:
        output.register_hook(goes_back)

    parts.stage.register_forward_hook(last)
    with pytest.raises(RuntimeError, match="a layer was changed within a step"):
        parts.engine.train_step(batch)
    assert calls


@pytest.mark.parametrize("given", SETTINGS[:3], ids=str)
def test_layers_are_asked_no_more_often_where_their_gradients_are_told(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that are looked at closely take no longer than others."""
    asked: list[nn.Module] = []
    true = FusedFfn.for_one_call

    def counted(layer: FusedFfn) -> Any:
        asked.append(layer)
        return true(layer)

    monkeypatch.setattr(FusedFfn, "for_one_call", counted)

    def told(parts: TrainingParts) -> None:
        for parameter in parts.stage.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _parameter: None)

    train(cell(**given))
    usually = len(asked)
    train(cell(**given), told)
    assert len(asked) == 2 * usually


def test_a_stage_that_is_evaluated_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the running statistics, as its layers one by one."""
    seen: list[Tensor] = []

    def change(parts: TrainingParts) -> None:
        stage = parts.stage

        def evaluated(_stage: nn.Module, given: Any, _output: Tensor) -> None:
            if not stage.training:
                return
            stage.eval()
            with torch.no_grad():
                seen.append(stage(*given))
            stage.train()

        stage.register_forward_hook(evaluated)

    ours = train(cell(microbatches=4), change) + seen
    one_by_one(monkeypatch)
    seen.clear()
    theirs = train(cell(microbatches=4), change) + seen
    assert len(seen) == 2 * 4
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_hook_that_has_every_attribute_needs_its_input() -> None:
    parts, batch = made(cell(microbatches=1))
    hook = MagicMock(return_value=None)
    parts.stage.layers[-1].register_forward_hook(hook)
    parts.engine.train_step(batch)
    _layer, (x, _context), _output = hook.call_args[0]
    assert x.shape == (8, 64, 3)


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


def test_a_weight_changed_where_no_call_was_used(calls: list[int]) -> None:
    """By a hook between layers, such as one that keeps it in bounds."""
    parts, batch = made(cell(microbatches=2))
    layer = parts.stage.layers[1]

    def keep(_layer: nn.Module, _given: Any) -> None:
        with torch.no_grad():
            layer.get_parameter("fc1.weight").clamp_(-1, 1)

    layer.register_forward_pre_hook(keep)
    parts.engine.train_step(batch)
    assert calls == []


@pytest.mark.parametrize("classes", [9, 11, 1000])
def test_a_readout_of_other_classes_than_its_outline(classes: int) -> None:
    parts, batch = made(cell(microbatches=2))
    readout = parts.stage.layers[-1]
    width = readout.get_parameter("fc1.bias").shape[0]
    readout.fc2 = nn.Linear(width, classes)
    for parameter in readout.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(GnnhpcError, match=rf"readout gives \[4, {classes}\] where its outline"):
        parts.engine.train_step(batch)


def test_a_type_for_new_tensors_that_is_not_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = cell(microbatches=2)
    plain = train(experiment)
    parts, batch = made(experiment)
    torch.set_default_dtype(torch.float64)
    try:
        output = parts.engine.train_step(batch)
    finally:
        torch.set_default_dtype(torch.float32)
    found = [*output.outputs, *output.losses]
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=False))


def test_a_gradient_put_aside_for_a_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a hook of another parameter: the micro-batch's counts where it was put."""

    def change(parts: TrainingParts) -> None:
        hooked, other = (parts.stage.layers[n].get_parameter("fc1.weight") for n in (0, 1))
        held: list[Tensor] = []

        def exchange(_parameter: Tensor) -> None:
            assert other.grad is not None
            before, other.grad = other.grad, held.pop() if held else torch.zeros_like(other)
            held.append(before)

        hooked.register_post_accumulate_grad_hook(exchange)

    ours = train(cell(microbatches=4), change)
    one_by_one(monkeypatch)
    theirs = train(cell(microbatches=4), change)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("layer", [1, 4], ids=["ffn", "readout"])
def test_a_gradients_memory_put_elsewhere_by_its_hook(
    layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Tensor] = []

    def change(parts: TrainingParts) -> None:
        weight = parts.stage.layers[layer].get_parameter("fc1.weight")

        def moved(parameter: Tensor) -> None:
            assert parameter.grad is not None
            kept.append(parameter.grad.data)
            parameter.grad.data = parameter.grad.data.clone()

        weight.register_post_accumulate_grad_hook(moved)

    ours = train(cell(microbatches=4), change)
    one_by_one(monkeypatch)
    theirs = train(cell(microbatches=4), change)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_hook_that_makes_an_output_of_its_layers_input() -> None:
    parts, batch = made(cell(microbatches=1))
    readout = parts.stage.layers[-1]
    readout.register_forward_hook(lambda _layer, given, output: output + given[0].mean())
    with pytest.raises(RuntimeError, match="a hook gave its layer's input a gradient"):
        parts.engine.train_step(batch)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_no_gradients_of_gradients() -> None:
    parts, batch = made(cell(microbatches=1))
    (microbatch,) = batch.microbatches
    with parts.stage.one_step(1), pytest.raises(RuntimeError, match="have no gradients"):
        output = parts.stage(microbatch.inputs, microbatch.context)
        output.sum().backward(create_graph=True)


def test_calls_are_good_for_one_step(calls: list[int]) -> None:
    """Whoever calls the stage by itself may have exchanged its parameters."""
    parts, batch = made(cell(microbatches=1))
    parts.engine.train_step(batch)
    (microbatch,) = batch.microbatches
    inputs = microbatch.inputs
    assert isinstance(inputs, Tensor)
    parts.stage(inputs, dataclasses.replace(microbatch.context))
    assert len(calls) == 1


class _A(InOneCall):
    prepare_call = staticmethod(lambda *_: None)


class _B(InOneCall):
    prepare_call = staticmethod(lambda *_: None)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("", []),
        ("a", []),
        ("aa", [range(2)]),
        ("aaxa", [range(2)]),
        ("xaab", [range(1, 3)]),
        ("aabb", [range(2), range(2, 4)]),
        ("xx", []),
        ("abab", []),
    ],
)
def test_neighbours(kinds: str, expected: list[range]) -> None:
    layers = [{"a": _A, "b": _B, "x": nn.Identity}[kind]() for kind in kinds]
    assert neighbours(layers) == expected


def _looks_again(parts: TrainingParts) -> None:
    inside: list[None] = []

    def again(stage: nn.Module, given: Any, _output: Tensor) -> None:
        if not inside:
            inside.append(None)
            with torch.no_grad():
                stage(*given)
            inside.clear()

    parts.stage.register_forward_hook(again)


def _goes_both_ways(parts: TrainingParts) -> None:
    inside: list[None] = []

    def flipped(stage: nn.Module, given: Any, output: Tensor) -> Tensor | None:
        if inside:
            return None
        inside.append(None)
        other: Tensor = stage(given[0].flip(1), *given[1:])
        inside.clear()
        return output + other

    parts.stage.register_forward_hook(flipped)


def _goes_back_twice(parts: TrainingParts) -> None:
    parts.stage.register_forward_hook(
        lambda _stage, _given, output: output.square().mean().backward(retain_graph=True)
    )


@pytest.mark.parametrize("change", [_looks_again, _goes_both_ways, _goes_back_twice])
def test_a_stage_that_is_used_twice_for_a_micro_batch(
    change: Callable[[TrainingParts], None], calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = train(cell(microbatches=4), change)
    assert calls
    one_by_one(monkeypatch)
    theirs = train(cell(microbatches=4), change)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_an_activation_changed_in_place_is_told() -> None:
    parts, batch = made(cell(microbatches=1))

    def change(_layer: nn.Module, given: Any, _output: Tensor) -> None:
        with torch.no_grad():
            given[0].mul_(2.0)

    parts.stage.layers[-1].register_forward_hook(change)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        parts.engine.train_step(batch)
