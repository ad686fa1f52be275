"""Timelines of the zero-bubble schedule: backward and weights are bars of their own."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgb

from analysis.figures.gantt import draw_timeline, timeline_caption
from analysis.figures.style import ACTION_COLOURS
from analysis.loading.run import Run, load
from analysis.timeline.chrome_trace import trace_events
from analysis.timeline.step_timeline import (
    Bar,
    RankRow,
    cells_with_spans,
    ideal_bars,
    measured_timeline,
    waited_share,
)
from gnnhpc.core.bounds import bound_with_weights, ideal_bubble
from gnnhpc.core.schedule import ScheduleName
from gnnhpc.records.schema import Check
from tests.analysis.test_several_parts import change_records
from tests.analysis.test_split_backward import BACKWARD, BY_HAND, FORWARD, WEIGHTS, zero_bubble
from tests.analysis.test_summary import vig
from tests.analysis.test_timeline import assert_nested
from tests.tools.make_run import Machine, Story, make_run

ROWS = (RankRow(0, 0, 0), RankRow(1, 0, 1))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A fifth of backward is of weights."""
    machine = Machine(weights=lambda _: 0.2)
    cells = [zero_bubble("pp2", 4, spans=True)]
    return load(make_run(tmp_path_factory.mktemp("weights") / "run", cells, machine=machine))


def bars_of(*names: str) -> tuple[Bar, ...]:
    """The costs of test_split_backward, of two micro-batches."""
    tables = {"forward": FORWARD, "backward": BACKWARD, "weights": WEIGHTS}
    return tuple(
        Bar(rank, name, m, 100.0 * m, 100.0 * m + tables[name][rank])
        for name in names
        for rank in (0, 1)
        for m in (0, 1)
    )


def test_both_halves_of_backward_are_played() -> None:
    played = ideal_bars(
        bars_of("forward", "backward", "weights"), ROWS, "zero-bubble", 2, training=True
    )
    assert max(bar.end_s for bar in played) == BY_HAND
    at = {(bar.rank, bar.name, bar.microbatch): (bar.start_s, bar.end_s) for bar in played}
    assert len(at) == len(played) == 12
    assert at[0, "backward", 0] == (4.0, 6.0)
    assert at[0, "weights", 0] == (6.0, 9.0)
    assert at[1, "weights", 0] == (7.0, 9.0)
    busy = 2 * (sum(FORWARD) + sum(BACKWARD) + sum(WEIGHTS))
    assert waited_share(played, 2) == pytest.approx(1 - busy / (2 * BY_HAND))


def test_no_ideal_is_made_up_for_a_missing_span_of_weights() -> None:
    found = bars_of("forward", "backward", "weights")
    assert ideal_bars(found[:-1], ROWS, "zero-bubble", 2, training=True) == ()
    evaluated = ideal_bars(found[:4], ROWS, "zero-bubble", 2, training=False)
    assert {bar.name for bar in evaluated} == {"forward"}


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_one_stage_needs_no_spans_of_weights(schedule: ScheduleName) -> None:
    measured = (Bar(0, "forward", 0, 0.0, 1.0), Bar(0, "backward", 0, 1.0, 4.0))
    played = ideal_bars(measured, ROWS[:1], schedule, 1, training=True)
    assert [(bar.name, bar.end_s) for bar in played] == [("forward", 1.0), ("backward", 4.0)]


def test_the_bubble_of_equal_stages_is_of_the_steps_own_seconds(run: Run) -> None:
    (cell,) = cells_with_spans(run)
    timeline = measured_timeline(run, cell)
    # One of forward, 1.6 of inputs and 0.4 of weights.
    most = bound_with_weights("zero-bubble", 1, 2, 4, (1.0, 1.6, 0.4))
    assert timeline.balanced_bubble == pytest.approx(1 - most / 2)
    assert 1 / 13 < 1 - most / 2 < ideal_bubble(2, 4)
    assert timeline.efficiency == pytest.approx(1 / 1.02)
    passes = [bar for bar in timeline.measured if bar.microbatch is not None]
    assert {(b.rank, b.name, b.number) for b in passes} == {
        (b.rank, b.name, b.number) for b in timeline.ideal
    }
    assert len(passes) == len(timeline.ideal) == 2 * 3 * 4
    evaluated = measured_timeline(run, cell, "test")
    assert {bar.name for bar in evaluated.ideal} == {"forward"}
    assert evaluated.balanced_bubble == pytest.approx(ideal_bubble(2, 4))


def test_a_caption_says_where_next_to_nothing_is_apart(run: Run) -> None:
    """The report says of the same cell that it is so in name alone."""
    timeline = measured_timeline(run, cells_with_spans(run)[0])
    assert "the gradients of weights come later" in timeline_caption(timeline)
    short = tuple(
        replace(bar, end_s=bar.start_s + 0.01 * (bar.end_s - bar.start_s))
        if bar.name == "weights"
        else bar
        for bar in timeline.measured
    )
    caption = timeline_caption(replace(timeline, measured=short))
    assert "next to nothing comes later as weights" in caption
    assert "come later, by themselves" not in caption


def test_a_step_without_seconds_of_weights_has_an_unknown_bubble(tmp_path: Path) -> None:
    """Of a cell that an audit refused: of others it is damage."""
    cell = zero_bubble("pp2", 4, spans=True)
    refused = {cell.id: [Story(audit=(Check("engine", "invalid", "planted"),))]}
    root = make_run(tmp_path / "run", [cell], stories=refused)

    def without(record: dict[str, Any]) -> None:
        record.pop("weights_s", None)

    change_records(root, without)
    timeline = measured_timeline(load(root), cell.id)
    assert timeline.balanced_bubble is None
    assert "(equal stages unknown)" in draw_timeline(timeline).axes[1].get_title(loc="left")


def test_the_chart_tells_the_halves_apart(run: Run) -> None:
    (cell,) = cells_with_spans(run)
    timeline = measured_timeline(run, cell)
    figure = draw_timeline(timeline)
    measured, ideal = figure.axes
    (legend,) = figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == ["forward", "backward", "weights", "optimizer", "wait"]
    weights = to_rgb(ACTION_COLOURS["weights"])
    for axes in (measured, ideal):
        drawn = [
            path
            for one in axes.collections
            if tuple(map(float, one.get_facecolor()[0][:3])) == pytest.approx(weights)
            for path in one.get_paths()
        ]
        assert len(drawn) == 2 * 4
    assert "ideal zero-bubble," in ideal.get_title(loc="left")
    assert "Backward is of inputs alone" in timeline_caption(timeline)


def test_a_whole_backward_is_not_said_to_be_half_of_one(tmp_path: Path) -> None:
    cells = [vig("pp2", 4, schedule="1f1b", spans=True)]
    found = load(make_run(tmp_path / "run", cells))
    (cell,) = cells_with_spans(found)
    timeline = measured_timeline(found, cell)
    assert "weights" not in timeline_caption(timeline)
    (legend,) = draw_timeline(timeline).legends
    assert "weights" not in [text.get_text() for text in legend.get_texts()]


def test_passes_are_of_different_lightness() -> None:
    """So that they are told apart in grey."""
    names = ("forward", "backward", "weights", "wait")
    greys = sorted(
        0.299 * red + 0.587 * green + 0.114 * blue
        for red, green, blue in (to_rgb(ACTION_COLOURS[name]) for name in names)
    )
    assert all(after - before > 0.1 for before, after in itertools.pairwise(greys))


def test_the_trace_names_the_weights(run: Run) -> None:
    (cell,) = cells_with_spans(run)
    events = [event for event in trace_events(run, cell) if event["ph"] == "X"]
    mine = [event for event in events if event["cat"] == "weights"]
    assert {event["name"] for event in mine} == {f"weights {m}" for m in range(4)}
    steps = run.steps[run.steps["phase"] == "train"]
    assert len(mine) == 2 * 4 * len(steps)
    for track in {(e["pid"], e["tid"]) for e in events}:
        assert_nested([e for e in events if (e["pid"], e["tid"]) == track])
