"""ZBV: each stage's two parts with their gradients of weights, and the loss on the first stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.figures.gantt import draw_timeline
from analysis.figures.studies import find_studies
from analysis.figures.waterfall import waterfall
from analysis.loading.run import Run, load
from analysis.report.schedule_in_name import zero_bubble_in_name
from analysis.summary.ideal_step import Passes, ideal_seconds
from analysis.summary.lost_time import COLUMNS
from analysis.summary.summary_table import summarise
from analysis.timeline.step_timeline import (
    Bar,
    RankRow,
    cells_with_spans,
    ideal_bars,
    measured_timeline,
)
from gnnhpc.core.bounds import bound, bound_with_weights, ideal_bubble
from gnnhpc.core.schedule import place_of_part
from gnnhpc.experiment.experiment import Experiment
from tests.analysis.test_several_parts import change_records
from tests.analysis.test_summary import row, three, vig
from tests.tools.make_run import Machine, make_run

# Seconds of a micro-batch in each part of the model: of pp2 stage 0 has the first and the last.
FORWARD, BACKWARD, WEIGHTS = (1.0, 2.0, 3.0, 4.0), (2.0, 1.0, 2.0, 1.0), (1.0, 3.0, 1.0, 2.0)
"""By hand, of two micro-batches; backward is of inputs alone:
stage 0: F0 0-1, F1 1-2, F0' 6-10, B0' 10-11, W0' 11-13, F1' 13-17, B1' 17-18, W1' 18-20, B0 20-22,
    W0 22-23, B1 23-25, W1 25-26
stage 1: F0 1-3, F0' 3-6, F1 6-8, F1' 8-11, B0' 11-13, W0' 13-14, B0 14-15, W0 15-18, B1' 18-20,
    W1' 20-21, B1 21-22, W1 22-25
"""
BY_HAND = 26.0
COSTS = (FORWARD, BACKWARD, WEIGHTS)
THIRDS = (1.0, 1.0, 1.0)


def zbv(layout: str, microbatches: int, **changes: object) -> Experiment:
    return vig(layout, microbatches, schedule="zbv", **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    experiments = three(
        vig(),
        vig("seq", 4),
        vig("pp2", 4),
        zbv("pp2", 4, spans=True),
        zbv("dp2-pp2", 4),
        zbv("pp4", 10),
        zbv("seq", 10),
    )
    return load(make_run(tmp_path_factory.mktemp("zbv") / "run", experiments))


@pytest.fixture(scope="module")
def summary(run: Run) -> pd.DataFrame:
    return summarise(run)


def test_parts_and_their_weights_add_up_to_their_stage(run: Run) -> None:
    assert run.cells["valid"].all()
    cells = run.cells[run.cells["parts"] == 2]
    assert set(run.parts["cell"]) == set(cells["cell"])
    keys, names = ["cell", "phase", "step", "rank"], ["forward_s", "backward_s", "weights_s"]
    sums = run.parts.groupby(keys, observed=True)[names].sum()
    stages = run.ranks[run.ranks["cell"].isin(cells["cell"])].set_index(keys)
    np.testing.assert_allclose(sums, stages.loc[sums.index, names])
    assert (sums["weights_s"].xs("train", level="phase") > 0).all()


def test_the_ideal_step_is_the_one_worked_out_by_hand() -> None:
    steps = np.array([1.0, 10.0])
    ways = [[seconds * steps for seconds in way] for way in (FORWARD, BACKWARD, WEIGHTS)]
    found = ideal_seconds("zbv", Passes(*ways), 2, parts=2, training=True)
    assert found.tolist() == [BY_HAND, 10 * BY_HAND]
    # The first four forwards, and the two second ones that wait for the last stage.
    test = ideal_seconds("zbv", Passes(*ways), 2, parts=2, training=False)
    assert test.tolist() == [15.0, 150.0]


def test_the_ideal_of_a_run_is_of_each_parts_halves(tmp_path: Path) -> None:
    """From records, where a stage's parts stand one after the other."""
    root = make_run(tmp_path / "run", [zbv("pp2", 2)])
    scale, place = 0.01, {"stage": 0}

    def change(record: dict[str, Any]) -> None:
        if record["kind"] == "header":
            place["stage"] = record["stage"]
            return
        training = record["phase"] == "train"
        numbers = (0, 3) if place["stage"] == 0 else (1, 2)
        told = [
            (FORWARD[n], BACKWARD[n] + WEIGHTS[n], WEIGHTS[n]) if training else (FORWARD[n], 0, 0)
            for n in numbers
        ]
        # A record is of both micro-batches.
        record["part_s"] = [[2 * scale * seconds for seconds in part] for part in told]
        sums = [sum(way) for way in zip(*record["part_s"], strict=True)]
        record["forward_s"], record["backward_s"], record["weights_s"] = sums
        record["wall_s"] = 0.4
        record["start_s"] = record["step"] + (0.0 if training else 50.0)

    change_records(root, change)
    found = load(root)
    assert found.cells["valid"].all(), found.checks["detail"].tolist()
    one, test = row(summarise(found), "pp2", 2), row(summarise(found), "pp2", 2, "test")
    assert one["ideal_step_s"] == pytest.approx(scale * BY_HAND)
    assert test["ideal_step_s"] == pytest.approx(scale * 15.0)
    shares = sum(FORWARD), sum(BACKWARD), sum(WEIGHTS)
    assert one["bound"] == pytest.approx(bound_with_weights("zbv", 1, 2, 2, shares, 2))


def test_bounds_are_of_its_own_order(summary: pd.DataFrame) -> None:
    of_zbv = summary[(summary["schedule"] == "zbv") & (summary["phase"] == "train")]
    of_zbv = of_zbv[of_zbv["stages"] > 1]
    assert len(of_zbv) == 3
    for _, one in of_zbv.iterrows():
        place = int(one["replicas"]), int(one["stages"]), int(one["microbatches"])
        assert one["bound"] == pytest.approx(bound_with_weights("zbv", *place, THIRDS, 2))
        # As of six parts a stage, where there are micro-batches enough.
        assert one["bound"] == pytest.approx(bound(*place, 6))
        test = row(summary, one["layout"], place[2], "test", schedule="zbv")
        assert test["bound"] == pytest.approx(bound(*place))
        assert test["balanced_bubble"] == pytest.approx(ideal_bubble(*place[1:]))
    # The made-up machine adds two percent to the ideal, nothing else.
    assert summary["efficiency"].to_numpy() == pytest.approx(1 / 1.02)


def test_the_loss_is_the_first_stages(run: Run, summary: pd.DataFrame) -> None:
    cells = set(run.cells.loc[run.cells["parts"] == 2, "cell"])
    mine = run.ranks[run.ranks["cell"].isin(cells)]
    assert mine.loc[mine["stage"] == 0, "loss"].notna().all()
    assert mine.loc[mine["stage"] > 0, "loss"].isna().all()
    assert row(summary, "pp2", 4, schedule="zbv")["train_loss"] > 0


def test_its_steps_are_taken_apart(run: Run, summary: pd.DataFrame) -> None:
    for layout, count in (("pp2", 4), ("dp2-pp2", 4), ("pp4", 10)):
        one = row(summary, layout, count, schedule="zbv")
        assert one[list(COLUMNS)].sum() == pytest.approx(one["mean_s"])
        at_bound = one["lost_linear_s"] + one["lost_schedule_s"]
        best = one["lost_linear_s"] * int(one["replicas"]) * int(one["stages"])
        assert at_bound == pytest.approx(best / one["bound"])
    (study,) = find_studies(run, summary)
    figure = waterfall(study)
    assert not isinstance(figure, str)
    titles = [" ".join(axes.get_title(loc="left").split()) for axes in figure.axes]
    assert any(title.startswith("pp2, 4 micro-batches, zbv, 2 parts:") for title in titles)


def without_its_weights(record: dict[str, Any]) -> None:
    record["part_s"][1].pop()


def more_than_the_stage(record: dict[str, Any]) -> None:
    record["part_s"][1][2] += 0.5


def more_than_its_backward(record: dict[str, Any]) -> None:
    (forward, backward, weights), other = record["part_s"]
    moved_s = backward - weights / 2
    record["part_s"] = [
        [forward, backward - moved_s, weights],
        [other[0], other[1] + moved_s, other[2]],
    ]


def not_a_number(record: dict[str, Any]) -> None:
    record["part_s"][0][2] = None


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (without_its_weights, "part_s"),
        (more_than_the_stage, "allowed: what adds up to weights_s"),
        (more_than_its_backward, "allowed: weights within the part's own backward"),
        (not_a_number, "part_s"),
    ],
)
def test_parts_without_their_weights_are_damage(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], says: str
) -> None:
    root = make_run(tmp_path / "run", [zbv("pp2", 4), vig("pp2", 4)])

    def change(record: dict[str, Any]) -> None:
        if record.get("part_s") and (record["phase"], record["step"]) == ("train", 2):
            damage(record)

    change_records(root, change)
    damaged = load(root)
    assert damaged.cells["status"].tolist() == ["damaged", "done"]
    detail = damaged.checks["detail"].iloc[0]
    assert "train step 2: part_s: found [" in detail
    assert says in detail


def test_weights_of_parts_that_have_none_apart_are_damage(tmp_path: Path) -> None:
    several = {"schedule": "interleaved", "virtual_stages": 2}
    root = make_run(tmp_path / "run", [vig("pp2", 4, **several)])

    def change(record: dict[str, Any]) -> None:
        if record.get("part_s"):
            record["part_s"] = [[*seconds, 0.0] for seconds in record["part_s"]]

    change_records(root, change)
    damaged = load(root)
    assert damaged.cells["status"].tolist() == ["damaged"]
    assert "forward and backward alone" in damaged.checks["detail"].iloc[0]


def test_each_part_is_played_on_the_stage_that_holds_it() -> None:
    rows = (RankRow(0, 0, 0), RankRow(1, 0, 1))
    places = [place_of_part("zbv", number, 2) for number in range(4)]
    measured = tuple(
        Bar(rank, name, m, 100.0 * m, 100.0 * m + table[number], part)
        for name, table in (("forward", FORWARD), ("backward", BACKWARD), ("weights", WEIGHTS))
        for number, (rank, part) in enumerate(places)
        for m in (0, 1)
    )
    played = ideal_bars(measured, rows, "zbv", 2, parts=2, training=True)
    at = {(bar.rank, bar.name, bar.number): (bar.start_s, bar.end_s) for bar in played}
    assert max(bar.end_s for bar in played) == BY_HAND
    assert at[0, "forward", "1'"] == (13.0, 17.0)
    assert at[1, "backward", "0'"] == (11.0, 13.0)
    assert at[1, "weights", "1"] == (22.0, 25.0)


def test_a_part_that_never_went_backward_is_played_without() -> None:
    """As one of dropout alone, which has nothing to train."""
    rows = (RankRow(0, 0, 0), RankRow(1, 0, 1))
    places = [place_of_part("zbv", number, 2) for number in range(4)]
    measured = tuple(
        Bar(rank, name, m, 10.0 * m, 10.0 * m + 1.0, part)
        for name in ("forward", "backward", "weights")
        for number, (rank, part) in enumerate(places)
        for m in (0, 1)
        if number or name == "forward"
    )
    played = ideal_bars(measured, rows, "zbv", 2, parts=2, training=True)
    assert {(bar.rank, bar.part) for bar in played if bar.end_s > bar.start_s} == set(places)
    assert sum(bar.end_s - bar.start_s for bar in played) == len(measured)
    without_forwards = tuple(bar for bar in measured if bar.name != "forward")
    assert ideal_bars(without_forwards, rows, "zbv", 2, parts=2, training=True) == ()


def test_a_timeline_has_both_parts_and_their_weights(run: Run) -> None:
    cell = cells_with_spans(run)[0]
    timeline = measured_timeline(run, cell)
    assert timeline.efficiency == pytest.approx(1 / 1.02)
    assert timeline.balanced_bubble == pytest.approx(1 - bound(1, 2, 4, 6) / 2)
    passes = [bar for bar in timeline.measured if bar.microbatch is not None]
    assert {(b.rank, b.name, b.number) for b in passes} == {
        (b.rank, b.name, b.number) for b in timeline.ideal
    }
    assert len(timeline.ideal) == 2 * 2 * 3 * 4
    _, ideal = draw_timeline(timeline).axes
    assert "ideal zbv, 2 parts a stage" in ideal.get_title(loc="left")
    test = measured_timeline(run, cell, "test")
    assert test.balanced_bubble == pytest.approx(ideal_bubble(2, 4))
    assert {bar.name for bar in test.ideal} == {"forward"}


def test_where_hardly_anything_is_left_the_report_says_what_zbv_is_there(tmp_path: Path) -> None:
    cells = [vig("pp2", 4, schedule="zero-bubble"), zbv("pp2", 4), zbv("pp2", 10)]
    machine = Machine(weights=lambda experiment: 0.01)
    summary = summarise(load(make_run(tmp_path / "run", cells, machine=machine)))
    (said,) = zero_bubble_in_name(summary)
    assert "(pp2, 4 micro-batches; pp2, 10 micro-batches)" in said
    assert said.endswith(
        "So zero-bubble is 1F1B there in all but name, and does not pay; zbv can pay there by its "
        "two parts a stage alone."
    )


def test_an_evaluation_of_unlike_parts_may_be_above_the_bound_of_equal_ones(
    tmp_path: Path,
) -> None:
    """Where the last stage is lighter there is less to wait for on the way back: the bound is not
    what no evaluation can be above, and the row stays valid."""
    light = ideal_seconds(
        "zbv",
        Passes(*([np.array([seconds]) for seconds in way] for way in ([1.1, 0.9, 0.9, 1.1],) * 3)),
        4,
        parts=2,
        training=False,
    )
    assert 4 * 4.0 / light[0] > bound(1, 2, 4)
    cells = three(vig(test_every=2), zbv("pp2", 4, test_every=2))
    root = make_run(tmp_path / "run", cells, machine=Machine(sequential=1.1))
    test = row(summarise(load(root)), "pp2", 4, "test")
    assert test["speedup_low"] > test["bound"]
    assert test["valid"] and "above-bound" not in str(test["flags"])
