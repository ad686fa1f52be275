"""Losses and accuracies in files and in the result are held against outputs and raw labels."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnnhpc.check.audits.reported import Key, planned_steps, reported
from gnnhpc.check.observations import RankObservations
from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.plain_tally import PlainSum, PlainTallies
from gnnhpc.core.layout import Layout
from gnnhpc.records.reported import ReportedStep
from gnnhpc.records.schema import Check
from tests.tools.cells import vig

LAYOUT = Layout(replicas=2, stages=2)
LAST = LAYOUT.replica_ranks(1)
PLANNED: list[Key] = [("train", 0), ("test", 0)]
Files = dict[int, list[ReportedStep]]
FINAL = {"train_loss": 0.3, "train_accuracy": 0.25, "test_loss": 2.0, "test_accuracy": 0.5}


def sums(loss: float, right: int, labelled: int, ties: int = 0) -> dict[str, PlainSum]:
    return {"loss": PlainSum(loss, 1e-7, labelled), "accuracy": PlainSum(right, ties, labelled)}


def observed() -> list[RankObservations]:
    """Of two replicas with four rows each, one of which has a tie."""
    tallies: dict[int, list[PlainTallies]] = {rank: [] for rank in range(4)}
    for rank, loss, right in zip(LAST, (1.0, 1.4), (0, 2), strict=True):
        tallies[rank] = [
            PlainTallies("train", 0, sums(loss, right, 4)),
            PlainTallies(
                "test", 0, sums(8.0, 2, 4, ties=1) | {"val_accuracy": PlainSum(1.0, 0.0, 1)}
            ),
        ]
    return [
        cast(
            RankObservations,
            SimpleNamespace(watched=SimpleNamespace(findings=Findings(), tallies=tallies[rank])),
        )
        for rank in range(4)
    ]


def files() -> Files:
    found: Files = {rank: [] for rank in range(4)}
    for rank, own in zip(LAST, (0.25, 0.35), strict=True):
        train = {"loss": 0.3, "accuracy": 0.25, "replica_loss": own}
        test = {"loss": 2.0, "accuracy": 0.5, "val_accuracy": 1.0}
        found[rank] = [ReportedStep("train", 0, train), ReportedStep("test", 0, test)]
    return found


def judged(found: Files, final: dict[str, float] | None = None) -> Check:
    told = FINAL | {"val_accuracy": 1.0} if final is None else final
    return reported(observed(), [found[rank] for rank in range(4)], told, LAYOUT, 1, PLANNED)


def test_what_outputs_give_may_be_reported() -> None:
    assert judged(files()).verdict == "ok"


def test_of_equally_high_outputs_either_may_be_taken() -> None:
    found = files()
    for rank in LAST:
        metrics = {**found[rank][1].metrics, "accuracy": 0.25}
        found[rank][1] = replace(found[rank][1], metrics=metrics)
    final = FINAL | {"val_accuracy": 1.0, "test_accuracy": 0.25}
    assert judged(found, final).verdict == "ok"
    found[LAST[0]][1] = replace(found[LAST[0]][1], metrics={**metrics, "accuracy": 0.2})
    assert judged(found, final).verdict == "invalid"


CHANGED: dict[str, tuple[int, dict[str, Any], str]] = {
    "of one replica alone": (0, {"loss": 0.25}, "train step 0: 0.25 is reported as loss, 0.3 is"),
    "another accuracy": (0, {"accuracy": 0.3}, "0.3 is reported as accuracy, 0.25 is"),
    "another replica's loss": (0, {"replica_loss": 0.35}, "0.35 is reported as replica_loss"),
    "nothing": (1, {"loss": None}, "nothing is reported as loss, 2 is that of the outputs"),
    "another split": (1, {"val_accuracy": 0.5}, "0.5 is reported as val_accuracy, 1 is"),
    "no number": (1, {"loss": float("nan")}, "nan is reported as loss"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_outputs_do_not_give_is_named(name: str) -> None:
    step, change, words = CHANGED[name]
    found, rank = files(), LAST[0]
    found[rank][step] = replace(found[rank][step], metrics={**found[rank][step].metrics, **change})
    check = judged(found)
    assert check.verdict == "invalid"
    assert words in check.detail, check


def test_a_step_that_is_not_in_the_file_is_missed() -> None:
    found = files()
    del found[LAST[1]][1]
    assert "1 steps are in the file, 2 were taken" in judged(found).detail


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"test_loss": 1.9}, "the result's test_loss is 1.9, of the last step 2.0"),
        ({"accuracy": 0.99}, "the result's accuracy is 0.99, of the last step None"),
        ({"train_replica_loss": 0.25}, ""),
        ({"train_replica_loss": 0.2}, "the result's train_replica_loss is 0.2"),
    ],
)
def test_the_result_has_the_last_step_of_each_phase(change: dict[str, float], words: str) -> None:
    check = judged(files(), FINAL | {"val_accuracy": 1.0} | change)
    assert check.verdict == ("invalid" if words else "ok"), check
    assert words in check.detail


def test_where_labels_are_wrong_that_alone_is_told() -> None:
    found = observed()
    found[0].watched.findings.wrong["targets"] += 1  # type: ignore[union-attr]
    assert reported(found, [[]] * 4, {}, LAYOUT, 1, PLANNED).verdict == "ok"


@pytest.mark.parametrize(
    ("start", "every", "steps"),
    [
        (0, None, "0 1 2 3 4 t0 t1"),
        (0, 2, "0 1 t0 t1 2 3 t2 t3 4 t4 t5"),
        (3, 2, "3 t0 t1 4 t2 t3"),
        (5, 2, ""),
    ],
)
def test_an_evaluation_comes_after_so_many_steps_and_at_the_end(
    start: int, every: int | None, steps: str
) -> None:
    experiment = vig(train_steps=5, test_steps=2, test_every=every)
    planned = planned_steps(experiment, start, experiment.train_steps)
    assert " ".join(f"{'t' if phase == 'test' else ''}{n}" for phase, n in planned) == steps


def test_a_step_in_another_place_than_planned_is_named() -> None:
    found = files()
    for rank in LAST:
        found[rank].reverse()
    assert "test step 0 is step 0 of its file, train step 0 was planned" in judged(found).detail
