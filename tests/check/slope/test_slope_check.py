"""A step of full size: its gradient is held against differences of its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.check.slope import slope_check as slope_check_module
from gnnhpc.check.slope.differences import Difference
from gnnhpc.check.slope.passes import Pass, Passes, a_step_more
from gnnhpc.check.slope.slope_check import (
    MOST_S,
    PASSES,
    PLACES,
    Slopes,
    confirmed,
    slope_check,
    verdict,
)
from gnnhpc.core.settings import MOST_SEED
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check
from gnnhpc.train.setup import TrainingParts
from tests.defects.patching import around
from tests.engines.steps import parts_of
from tests.tools.cells import gat, graphs, linked, manifest_of, run, sampled, vig
from tests.tools.forked import Plant


def difference(ratio: float, length: float, size: float | None = None) -> Difference:
    return Difference(length, ratio * length, length, length if size is None else size, 1e-9)


RIGHT = [difference(1.0, 1e-3)]
WRONG = [difference(2.0, 1e-4), difference(2.0, 1e-3)]
CURVED = [difference(1.03, 1e-4), difference(1.3, 1e-3)]
FAR = [difference(3.1, 1e-4), difference(9.0, 1e-3)]


@pytest.mark.parametrize(
    ("slopes", "expected", "words"),
    [
        (Slopes(RIGHT, [RIGHT]), "ok", "along it by 1.0000"),
        (Slopes(WRONG, [RIGHT]), "invalid", "along its gradient by 2.0000"),
        (Slopes(RIGHT, [RIGHT, WRONG]), "invalid", "in a random direction otherwise by 1.0000"),
        (Slopes((), [[difference(2.0, n, 0.0) for n in (1e-4, 1e-3)]]), "invalid", "no gradient"),
        (Slopes(RIGHT, [CURVED, RIGHT]), "unknown", "not straight enough"),
        (Slopes(CURVED, [RIGHT]), "unknown", "not straight enough"),
        (Slopes(WRONG, [RIGHT], doubtful=True), "unknown", "along its gradient by 2.0000"),
        (Slopes(RIGHT, [FAR, RIGHT]), "unknown", "not straight enough"),
        (Slopes(RIGHT, [FAR, RIGHT], far_off=True), "suspect", "otherwise by 2.1000"),
        (Slopes(RIGHT, [(), RIGHT]), "unknown", "rounding hides"),
        (Slopes(RIGHT, ()), "unknown", "rounding hides"),
        (Slopes(), "unknown", "rounding hides"),
    ],
)
def test_a_gradient_is_right_in_both_directions(slopes: Slopes, expected: str, words: str) -> None:
    check = verdict(slopes, 0.1)
    assert check.verdict == expected
    assert words in check.detail


HERE = {
    "right": Slopes(RIGHT, [RIGHT]),
    "wrong": Slopes(WRONG, [RIGHT]),
    "curved": Slopes(RIGHT, [CURVED]),
    "far": Slopes(RIGHT, [FAR]),
    "hidden": Slopes(RIGHT, [()]),
}


@pytest.mark.parametrize(
    ("places", "expected", "tried"),
    [
        ("right wrong wrong", "ok", 1),
        ("hidden right", "unknown", 1),
        ("curved curved right wrong", "ok", 3),
        ("curved hidden curved curved", "unknown", 4),
        ("curved wrong right wrong", "invalid", 4),
        ("curved wrong right right", "unknown", 4),
        ("wrong curved wrong right", "invalid", 3),
        ("wrong right curved right", "unknown", 4),
        ("far far far far", "suspect", 4),
        ("far far curved far", "unknown", 4),
        ("far right", "ok", 2),
        # No other place was tried.
        ("far", "unknown", 1),
    ],
)
def test_where_the_loss_is_not_straight_places_beside_tell(
    places: str, expected: str, tried: int
) -> None:
    """Or that it is far from what the gradient says at all of them."""
    taken: list[str] = []

    def each() -> Iterator[Slopes]:
        for place in places.split():
            taken.append(place)
            yield HERE[place]

    check = verdict(confirmed(each()), 0.1)
    assert (check.verdict, len(taken)) == (expected, tried)
    assert ("at parameters a little beside" in check.detail) == (expected == "ok" and tried > 1)


def test_a_users_own_gradients_may_be_meant_to_be_no_slopes() -> None:
    assert verdict(Slopes(WRONG, [RIGHT]), 0.1, own=True).verdict == "suspect"
    assert verdict(Slopes(RIGHT, [RIGHT, WRONG]), 0.1, own=True).verdict == "suspect"


def slope_here(experiment: Experiment, parts: TrainingParts, step_s: list[float]) -> Check:
    with a_step_more(experiment, parts, parts.engine.plan.mesh) as passes:  # type: ignore[attr-defined]
        return slope_check(experiment, passes, passes.take(), step_s)


def test_directions_of_the_largest_seed_are_drawn() -> None:
    """torch's generators take 64 bits."""
    experiment = vig(seed=MOST_SEED)
    found = slope_here(experiment, parts_of(experiment), [])
    assert found.verdict == "ok", found.detail


def test_parameters_and_statistics_stay_as_they_were() -> None:
    experiment = vig(batchnorm="deferred")
    parts = parts_of(experiment)
    before = {name: value.clone() for name, value in parts.stage.state_dict().items()}
    found = slope_here(experiment, parts, [])
    assert found.verdict == "ok", found.detail
    assert found.values["ratio"] == pytest.approx(1.0, abs=1e-2)
    after = parts.stage.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


class Warming(nn.Module):
    """A user's module that computes with a number and a buffer that it moves."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("moved", torch.ones(()))
        self.act = torch.jit.script(nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.moved = self.moved * 1.5
        activated: Tensor = self.act(x)
        return activated * float(self.calls * self.moved)


def test_each_pass_begins_with_what_a_users_module_had() -> None:
    parts, warming = parts_of(vig()), Warming()
    layer = parts.stage.layers[0]
    layer.add_module("warming", warming)
    layer.register_forward_hook(lambda _layer, _given, output: warming(output))
    with a_step_more(vig(), parts, parts.engine.plan.mesh) as passes:  # type: ignore[attr-defined]
        first, second = passes.take(), passes.take()
    assert first.loss == second.loss
    assert (warming.calls, float(warming.moved)) == (0, 1.0)


def test_a_step_that_takes_too_long_is_not_taken_again() -> None:
    parts = parts_of(gat())
    long = slope_here(gat(), parts, [MOST_S] * 10)
    assert (long.verdict, long.values) == ("unknown", {})
    assert slope_here(gat(), parts, [MOST_S] * 100).verdict == "ok"


def test_places_beside_are_tried_as_long_as_that_takes_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the loss is not straight; a gradient that is contradicted is always looked at again."""

    def looked_at(here: str, step_s: float) -> int:
        places: list[int] = []

        def of_place(_: Experiment, passes: Passes, first: Pass, place: int) -> Slopes:
            passes.taken += PASSES
            places.append(place)
            return HERE[here]

        monkeypatch.setattr(slope_check_module, "_slopes", of_place)
        slope_here(gat(), parts_of(gat()), [step_s])
        return len(places)

    assert looked_at("curved", 1e-3) == 1 + PLACES
    assert looked_at("curved", MOST_S / PASSES) == 1
    assert looked_at("wrong", MOST_S / PASSES) == 2


def slope_of(folder: Path, experiment: Experiment, damage: Plant | None = None) -> Check:
    (cell,) = manifest_of(folder, experiment)
    ran = run(folder, cell, plant=damage)
    assert set(ran.statuses) == {0}, ran.err
    (check,) = [each for each in ran.result.audit if each.name == "slope"]
    return check


@pytest.mark.quick(
    "sage seq native gpipe", "gat pp2 torchgpipe gpipe", "gat pp2 native zero-bubble"
)
@pytest.mark.distributed
@pytest.mark.parametrize(
    "experiment",
    [
        vig(layout="dp2-pp2", schedule="1f1b"),
        vig(layout="pp2", engine="pipelining", dtype="float64"),
        gat(layout="pp2", engine="torchgpipe"),
        gat(layout="dp2", model={"name": "gcn", "layers": 2}, bucket_mib=0.5),
        gat(layout="pp2", schedule="zero-bubble", microbatches=2),
        sampled(layout="dp2", batch_size=12),
        linked(),
        graphs(),
    ],
    ids=lambda each: f"{each.model.name} {each.layout} {each.engine} {each.schedule}",
)
def test_gradients_of_a_full_step_are_right(experiment: Experiment, tmp_path: Path) -> None:
    check = slope_of(tmp_path, experiment)
    assert check.verdict == "ok", check.detail


@pytest.mark.distributed
def test_a_gradient_of_half_the_length_is_told(tmp_path: Path) -> None:
    check = slope_of(tmp_path, gat(layout="pp2"), partial(plant, half_a_gradient))
    assert check.verdict == "invalid"
    assert "changes along its gradient by" in check.detail


@pytest.mark.quick("a parameter")
@pytest.mark.distributed
@pytest.mark.parametrize("lacks", ["some numbers", "a parameter", "all"])
def test_a_gradient_that_lacks_a_part_is_told(lacks: str, tmp_path: Path) -> None:
    """Along what it has the loss changes as it says."""
    check = slope_of(tmp_path, gat(layout="pp2"), partial(plant, LACKING[lacks]))
    assert check.verdict == "invalid", check.detail
    assert "changes in a random direction" in check.detail


def half_a_gradient(passes: Passes) -> None:
    if passes.mesh.stage == 1:
        for parameter in passes.parameters:
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)


def zero_in_places(passes: Passes) -> None:
    for parameter in passes.parameters:
        assert parameter.grad is not None
        parameter.grad[::3] = 0.0


def zero_of_a_parameter(passes: Passes) -> None:
    assert passes.parameters[0].grad is not None
    passes.parameters[0].grad.zero_()


def no_gradient(passes: Passes) -> None:
    for parameter in passes.parameters:
        parameter.grad = None


LACKING = {"some numbers": zero_in_places, "a parameter": zero_of_a_parameter, "all": no_gradient}


def plant(damage: Callable[[Passes], None]) -> None:
    """In steps after the last alone."""
    true = Passes.take

    def take(passes: Passes) -> Pass:
        found = true(passes)
        damage(passes)
        return found

    Passes.take = take  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.distributed
def test_a_wrong_gradient_is_flagged_where_the_loss_is_hardly_straight(tmp_path: Path) -> None:
    """After such large steps, of which each machine's rounding makes others."""
    settings = {"optimizer": {"lr": 1.0}, "train_steps": 30, "test_steps": 1, "test_every": None}
    experiment = gat(microbatches=2, **settings)
    right = slope_of(tmp_path / "right", experiment)
    assert right.verdict in ("ok", "unknown"), right.detail
    wrong = slope_of(tmp_path / "wrong", experiment, lost_but_in_self_checks)
    assert wrong.verdict in ("suspect", "invalid"), wrong.detail


def lost_but_in_self_checks() -> None:
    """No gradient before the second layer, as where tensors are larger than those."""
    from gnnhpc.check import self_check
    from gnnhpc.engines.stage import Stage

    checking: list[bool] = []

    def checked(true: Callable[..., object], *args: object, **named: object) -> object:
        checking.append(True)
        try:
            return true(*args, **named)
        finally:
            checking.pop()

    def through(
        true: Callable[..., tuple[torch.Tensor, object]], stage: Stage, layer: int, *given: object
    ) -> tuple[torch.Tensor, object]:
        output, end = true(stage, layer, *given)
        if layer == 1 and not checking and output.requires_grad:
            output.register_hook(torch.zeros_like)
        return output, end

    around(self_check, "self_check", checked)
    around(Stage, "_through_layer", through)
