"""Timelines of spans: the typical step, the ideal beside it, the chart and the Chrome trace."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from analysis.figures.gantt import draw_timeline, timeline_caption
from analysis.figures.style import ACTION_COLOURS
from analysis.loading.run import Run, load
from analysis.timeline.chrome_trace import trace_events, write_trace
from analysis.timeline.step_timeline import (
    Bar,
    RankRow,
    cells_with_spans,
    find_cell,
    ideal_bars,
    measured_timeline,
    waited_share,
)
from gnnhpc.core.bounds import ideal_bubble
from gnnhpc.core.errors import InputError
from gnnhpc.core.schedule import ideal_step_s
from gnnhpc.experiment.experiment import Experiment
from tests.analysis.test_several_parts import BACKWARD, BY_HAND, FORWARD
from tests.tools.make_run import make_run, small_sweep


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("timeline") / "run"
    sweep = small_sweep(1, 4, 2, spans=True)
    quiet = small_sweep(1, 4, 2, seed=1)
    chosen = [e for e in sweep if e.model.name == "vig"] + [e for e in quiet if e.microbatches == 1]
    return load(make_run(root, chosen))


def cell_of(run: Run, layout: str, microbatches: int = 5) -> str:
    cells = run.cells
    mine = cells[(cells["layout"] == layout) & (cells["microbatches"] == microbatches)]
    return str(mine[mine["cell"].isin(cells_with_spans(run))]["cell"].iloc[0])


def test_cells_without_spans_are_left_aside(run: Run) -> None:
    found = cells_with_spans(run)
    assert len(found) == 9
    assert all("-s0-" in cell for cell in found)


def test_a_typical_step_is_no_warmup_step(run: Run) -> None:
    cell = cell_of(run, "pp2")
    timeline = measured_timeline(run, cell)
    steps = run.steps[(run.steps["cell"] == cell) & (run.steps["phase"] == "train")]
    row = steps[steps["step"] == timeline.step].iloc[0]
    assert not row["warmup"]
    assert timeline.wall_s == row["wall_s"]


@pytest.mark.parametrize(("layout", "ranks"), [("seq", 1), ("pp2", 2), ("pp4", 4), ("dp2-pp2", 4)])
def test_measured_and_ideal_agree_where_only_overhead_differs(
    run: Run, layout: str, ranks: int
) -> None:
    timeline = measured_timeline(run, cell_of(run, layout))
    assert [row.rank for row in timeline.rows] == list(range(ranks))
    # The made-up machine adds two percent to the ideal, nothing else.
    assert timeline.efficiency == pytest.approx(1 / 1.02)
    assert timeline.bubble is not None and timeline.ideal_bubble is not None
    assert timeline.bubble >= timeline.ideal_bubble - 1e-9
    assert len([b for b in timeline.ideal if b.name == "forward"]) == 5 * ranks
    assert {(b.rank, b.name, b.microbatch) for b in timeline.ideal} == {
        (b.rank, b.name, b.microbatch) for b in timeline.measured if b.microbatch is not None
    }


def test_evaluation_has_no_backward(run: Run) -> None:
    timeline = measured_timeline(run, cell_of(run, "pp4"), "test")
    assert {bar.name for bar in timeline.ideal} == {"forward"}
    assert timeline.phase == "test"


def test_the_ideal_is_the_schedule_played_with_each_microbatchs_seconds() -> None:
    rows = (RankRow(0, 0, 0), RankRow(1, 0, 1))
    forward = [[1.0, 2.0], [3.0, 1.0]]
    backward = [[2.0, 2.0], [5.0, 1.0]]
    measured = tuple(
        Bar(rank, name, m, 100.0 * m, 100.0 * m + table[rank][m])
        for name, table in (("forward", forward), ("backward", backward))
        for rank in (0, 1)
        for m in (0, 1)
    )
    for schedule in ("gpipe", "1f1b"):
        played = ideal_bars(measured, rows, schedule, 2, training=True)
        expected = ideal_step_s(schedule, forward, backward, 2)
        assert max(bar.end_s for bar in played) == expected
        busy = sum(map(sum, forward)) + sum(map(sum, backward))
        assert waited_share(played, 2) == pytest.approx(1 - busy / (2 * expected))


def test_no_ideal_is_made_up_for_a_missing_span() -> None:
    measured = (Bar(0, "forward", 0, 0.0, 1.0), Bar(0, "backward", 0, 1.0, 2.0))
    assert len(ideal_bars(measured, (RankRow(0, 0, 0),), "gpipe", 1, training=True)) == 2
    assert ideal_bars(measured, (RankRow(0, 0, 0),), "gpipe", 2, training=True) == ()
    assert waited_share((), 1) is None


def test_replicas_are_played_apart() -> None:
    rows = (RankRow(0, 0, 0), RankRow(1, 1, 0))
    measured = (Bar(0, "forward", 0, 0.0, 1.0), Bar(1, "forward", 0, 0.0, 3.0))
    played = ideal_bars(measured, rows, "gpipe", 1, training=False)
    assert {(bar.rank, bar.end_s) for bar in played} == {(0, 1.0), (1, 3.0)}
    assert waited_share(played, 2) == pytest.approx(2 / 6)


def test_the_chart_has_a_row_a_rank_and_numbers_that_fit(run: Run) -> None:
    timeline = measured_timeline(run, cell_of(run, "dp2-pp2"))
    figure = draw_timeline(timeline)
    measured, ideal = figure.axes
    for axes in (measured, ideal):
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == [f"rank {r} (r{r // 2} s{r % 2})" for r in range(4)]
        assert {text.get_text() for text in axes.texts} <= set("01234")
        assert len(axes.texts) == 40
    assert ideal.get_xlabel() == "time since the step's first barrier (s)"
    assert f"{timeline.bubble:.1%}" in measured.get_title(loc="left")
    assert measured.get_title(loc="left").startswith("ViG, synthetic-cifar10\ndp2-pp2, train step ")
    assert f"{ideal_bubble(2, 5):.1%}" in ideal.get_title(loc="left")
    (legend,) = figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == ["forward", "backward", "optimizer", "wait"]


def test_actions_have_colours_of_their_own() -> None:
    assert len(set(ACTION_COLOURS.values())) == len(ACTION_COLOURS)


def check_event(event: dict[str, Any]) -> None:
    """What "Trace Event Format" asks of the two kinds used."""
    assert isinstance(event["name"], str)
    assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
    if event["ph"] == "M":
        assert event["name"] in {
            "process_name", "process_sort_index", "thread_name", "thread_sort_index",
        }  # fmt: skip
        ((key, value),) = event["args"].items()
        assert (key, type(value)) in {("name", str), ("sort_index", int)}
    else:
        assert event["ph"] == "X"
        assert event["ts"] >= 0 and event["dur"] >= 0
        assert isinstance(event["cat"], str)


def test_the_trace_is_valid_and_ordered(run: Run, tmp_path: Path) -> None:
    cell = cell_of(run, "dp2-pp2")
    out = write_trace(run, cell, tmp_path / "trace.json")
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["displayTimeUnit"] == "ms"
    assert document["otherData"] == {"cell": cell, "layout": "dp2-pp2"}
    events = document["traceEvents"]
    for event in events:
        check_event(event)
    kinds = [event["ph"] for event in events]
    assert kinds == sorted(kinds), "metadata stands first"
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    assert sorted(tracks) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for track in tracks.values():
        starts = [event["ts"] for event in track]
        assert starts == sorted(starts)
        assert_nested(track)


def assert_nested(track: list[dict[str, Any]]) -> None:
    """Slices of one track lie inside or beside each other, as viewers require."""
    open_until: list[float] = []
    for event in track:
        begin, end = event["ts"], event["ts"] + event["dur"]
        while open_until and open_until[-1] <= begin + 1e-6:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 2e-3, event
        open_until.append(end)


def test_the_trace_keeps_every_span_with_its_time(run: Run) -> None:
    cell = cell_of(run, "pp2")
    events = trace_events(run, cell)
    spans = run.spans[run.spans["cell"] == cell]
    ranks = run.ranks[run.ranks["cell"] == cell]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {"stage 0 (rank 0)", "stage 1 (rank 1)"}
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(spans) + len(ranks)
    one = next(e for e in complete if e["name"] == "forward 3" and e["tid"] == 1)
    row = spans[(spans["name"] == "forward") & (spans["microbatch"] == 3) & (spans["rank"] == 1)]
    row = row[(row["step"] == one["args"]["step"]) & (row["phase"] == one["args"]["phase"])].iloc[0]
    start = ranks[
        (ranks["rank"] == 1)
        & (ranks["step"] == one["args"]["step"])
        & (ranks["phase"] == one["args"]["phase"])
    ]["start_s"].iloc[0]
    assert one["ts"] == pytest.approx((start + row["start_s"]) * 1e6, abs=1e-3)
    assert one["dur"] == pytest.approx((row["end_s"] - row["start_s"]) * 1e6, abs=2e-3)


def test_a_cell_is_found_by_a_beginning_that_only_it_has(run: Run) -> None:
    cell = cell_of(run, "pp2", 10)
    assert find_cell(run, cell) == cell
    assert find_cell(run, "vig-synthetic-cifar10-pp2-m10-s0") == cell
    with pytest.raises(InputError, match="cells begin so"):
        find_cell(run, "vig")


def test_bad_requests_name_the_choices_and_write_nothing(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    with pytest.raises(InputError, match="found nowhere; allowed: vig-"):
        write_trace(run, "nowhere", out)
    without = next(str(c) for c in run.cells["cell"] if str(c) not in cells_with_spans(run))
    with pytest.raises(InputError, match="spans: true"):
        write_trace(run, without, out)
    with pytest.raises(InputError, match="train step 99"):
        measured_timeline(run, cell_of(run, "pp2"), step=99)
    assert not out.exists()


@pytest.fixture(scope="module")
def interleaved(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """pp2 in two parts a stage, four micro-batches."""
    (plain,) = (
        one
        for one in small_sweep(1, 4, 2, spans=True)
        if (one.model.name, str(one.layout), one.microbatches) == ("vig", "pp2", 5)
    )
    several = {"schedule": "interleaved", "virtual_stages": 2, "microbatches": 4}
    experiment = Experiment.model_validate(plain.model_dump() | several)
    return load(make_run(tmp_path_factory.mktemp("interleaved") / "run", [experiment]))


def test_each_part_of_a_stage_is_played_with_its_own_seconds() -> None:
    """The costs and the step worked out by hand in test_several_parts."""
    rows = (RankRow(0, 0, 0), RankRow(1, 0, 1))
    measured = tuple(
        Bar(rank, name, m, 100.0 * m, 100.0 * m + table[2 * part + rank], part)
        for name, table in (("forward", FORWARD), ("backward", BACKWARD))
        for rank in (0, 1)
        for part in (0, 1)
        for m in (0, 1)
    )
    played = ideal_bars(measured, rows, "interleaved", 2, parts=2, training=True)
    assert max(bar.end_s for bar in played) == BY_HAND
    at = {(bar.rank, bar.name, bar.number): (bar.start_s, bar.end_s) for bar in played}
    assert len(at) == len(played) == 16
    assert at[0, "forward", "1'"] == (7.0, 11.0)
    assert at[1, "backward", "0'"] == (8.0, 10.0)
    assert at[1, "backward", "1"] == (19.0, 20.0)
    busy = 2 * (sum(FORWARD) + sum(BACKWARD))
    assert waited_share(played, 2) == pytest.approx(1 - busy / (2 * BY_HAND))
    without = tuple(bar for bar in measured if (bar.rank, bar.part) != (1, 1))
    assert ideal_bars(without, rows, "interleaved", 2, parts=2, training=True) == ()


def test_an_interleaved_timeline_tells_parts_apart(interleaved: Run) -> None:
    (cell,) = cells_with_spans(interleaved)
    timeline = measured_timeline(interleaved, cell)
    assert timeline.efficiency == pytest.approx(1 / 1.02)
    assert timeline.balanced_bubble == pytest.approx(1 / 9)
    passes = [bar for bar in timeline.measured if bar.microbatch is not None]
    assert {(b.rank, b.name, b.number) for b in passes} == {
        (b.rank, b.name, b.number) for b in timeline.ideal
    }
    assert len(passes) == len(timeline.ideal) == 2 * 2 * 2 * 4
    assert {bar.name for bar in measured_timeline(interleaved, cell, "test").ideal} == {"forward"}
    figure = draw_timeline(timeline)
    measured, ideal = figure.axes
    numbers = {f"{m}{dash}" for m in range(4) for dash in ("", "'")}
    for axes in (measured, ideal):
        assert {text.get_text() for text in axes.texts} == numbers
    assert "ideal interleaved, 2 parts a stage" in ideal.get_title(loc="left")
    assert "(equal stages 11.1%)" in ideal.get_title(loc="left")
    assert lines_across(ideal) == 2 * 2 * 4
    assert "3' is micro-batch 3 in the second part" in timeline_caption(timeline)


def lines_across(axes: Axes) -> int:
    """Of white across bars of later parts."""
    white = (1.0, 1.0, 1.0, 1.0)
    return sum(
        len(one.get_paths())
        for one in axes.collections
        if tuple(map(float, np.atleast_2d(one.get_facecolor())[0])) == white
    )


def test_stages_of_one_part_have_no_dashes(run: Run) -> None:
    timeline = measured_timeline(run, cell_of(run, "pp2"))
    assert lines_across(draw_timeline(timeline).axes[0]) == 0
    assert "part" not in timeline_caption(timeline)


def test_the_trace_names_the_parts(interleaved: Run) -> None:
    (cell,) = cells_with_spans(interleaved)
    events = [e for e in trace_events(interleaved, cell) if e["ph"] == "X"]
    later = {e["name"]: e["args"] for e in events if e["args"].get("part")}
    assert set(later) == {f"{name} {m}'" for name in ("forward", "backward") for m in range(4)}
    assert all(args["part"] == 1 for args in later.values())
    assert {"forward 3", "backward 0"} <= {e["name"] for e in events}
    for track in {(e["pid"], e["tid"]) for e in events}:
        assert_nested([e for e in events if (e["pid"], e["tid"]) == track])
