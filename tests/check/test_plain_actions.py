"""The order of actions that runs are held to, worked out by hand and against the engines' own."""

from __future__ import annotations

from typing import Any

import pytest

from gnnhpc.check.plain.actions import actions, forwards_alone, forwards_before_backward
from gnnhpc.check.plain.parts import held_by
from gnnhpc.core.schedule import place_of_part, stage_order
from gnnhpc.experiment.experiment import Experiment


def experiment(layout: str, microbatches: int, **others: Any) -> Experiment:
    data = {"name": "synthetic-cifar10", "image_size": 8}
    given = {"layout": layout, "microbatches": microbatches, "batch_size": microbatches}
    return Experiment.model_validate({"model": {"name": "vig"}, "data": data, **given, **others})


def test_they_are_those_of_the_papers() -> None:
    interleaved = {"schedule": "interleaved", "virtual_stages": 2}
    for given, stage, words in (
        (experiment("pp2", 2), 0, "F0 F1 B0 B1"),
        (experiment("pp2", 3, engine="torchgpipe"), 0, "F0 F1 F2 B2 B1 B0"),
        (experiment("pp2", 3, schedule="1f1b"), 0, "F0 F1 B0 F2 B1 B2"),
        (experiment("pp2", 3, schedule="1f1b"), 1, "F0 B0 F1 B1 F2 B2"),
        (experiment("pp2", 3, schedule="zero-bubble"), 0, "F0 F1 B0 W0 F2 B1 W1 B2 W2"),
        (experiment("pp2", 3, schedule="zero-bubble"), 1, "F0 B0 F1 B1 W0 F2 B2 W1 W2"),
        (
            *(experiment("pp2", 3, schedule="zbv"), 1),
            "F0 F0' F1 F1' B0' W0' F2 B0 W0 F2' B1' W1' B1 B2' B2 W1 W2' W2",
        ),
        (experiment("pp2", 2, **interleaved), 1, "F0 F1 F0' B0' F1' B1' B0 B1"),
    ):
        assert " ".join(map(str, actions(given, stage))) == words
    for given, stage, words in (
        (experiment("pp2", 3, schedule="zero-bubble"), 0, "F0 F1 F2"),
        (experiment("pp2", 4, **interleaved), 0, "F0 F1 F0' F1' F2 F3 F2' F3'"),
        (experiment("pp2", 3, schedule="zbv"), 0, "F0 F1 F2 F0' F1' F2'"),
        (experiment("pp2", 3, schedule="zbv"), 1, "F0 F0' F1 F1' F2 F2'"),
    ):
        assert " ".join(map(str, forwards_alone(given, stage))) == words


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv"])
def test_engines_are_given_the_same(schedule: Any, stages: int) -> None:
    parts = {"interleaved": 3, "zbv": 2}.get(schedule, 1)
    for microbatches in (stages, 2 * stages, 4 * stages):
        given = experiment(f"pp{stages}", microbatches, schedule=schedule, parts=parts)
        for stage in range(stages):
            planned = stage_order(schedule, stage, stages, microbatches, parts=parts)
            assert actions(given, stage) == planned
            tested = stage_order(
                *(schedule, stage, stages, microbatches), parts=parts, training=False
            )
            assert forwards_alone(given, stage) == tested
            kinds = [action.kind for action in planned]
            assert forwards_before_backward(given, stage) == kinds.index("backward")


def test_a_few_micro_batches_do_not_fill_zbv() -> None:
    for stages in (2, 3, 4):
        for microbatches in range(1, 2 * stages):
            given = experiment(f"pp{stages}", microbatches, schedule="zbv")
            for stage in range(stages):
                planned = stage_order("zbv", stage, stages, microbatches, parts=2)
                assert actions(given, stage) == planned
                tested = stage_order(*("zbv", stage, stages, microbatches), parts=2, training=False)
                assert forwards_alone(given, stage) == tested
                kinds = [action.kind for action in planned]
                assert forwards_before_backward(given, stage) == kinds.index("backward")


def test_stages_hold_parts_as_the_papers_have_them() -> None:
    for given, stages in (
        (experiment("seq", 2), [0]),
        (experiment("dp2-pp3", 3), [0, 1, 2]),
        (experiment("pp2", 2, schedule="interleaved", virtual_stages=3), [0, 1, 0, 1, 0, 1]),
        (experiment("pp3", 3, schedule="zbv"), [0, 1, 2, 2, 1, 0]),
        (experiment("dp2-pp2", 2, engine="torchgpipe"), [0, 0]),
    ):
        assert held_by(given) == stages
        placed = [
            place_of_part(given.schedule, n, given.process_layout.stages)[0]
            for n in range(len(stages))
        ]
        assert placed == stages
        assert given.loss_stage == stages[-1]
