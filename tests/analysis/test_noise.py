"""Which steps count, and what the machine did meanwhile: frames in, frames out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.statistics.noise import (
    PHASE_COLUMNS,
    add_noise_columns,
    cell_phase_slices,
    counted_step_times,
    mark_steps,
)
from analysis.statistics.warmup import drift, effective_n

STEADY = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0]


def steps_of(parts: dict[tuple[str, str], tuple[list[float], int]]) -> pd.DataFrame:
    """Wall seconds of each cell and phase, and how many of its first steps are warm-up."""
    rows = [
        {"cell": cell, "phase": phase, "step_s": wall, "warmup": place < warmup}
        for (cell, phase), (walls, warmup) in parts.items()
        for place, wall in enumerate(walls)
    ]
    frame = pd.DataFrame(rows, columns=["cell", "phase", "step_s", "warmup"])
    frame = frame.assign(unlike=False, looked=False, samples=8)
    kinds = {"cell": "category", "phase": "category", "warmup": bool}
    return frame.astype(kinds)


TWO = {
    ("a", "test"): ([7.0, 8.0], 1),
    ("a", "train"): ([9.0, 9.0, *STEADY], 1),
    ("b", "train"): ([*STEADY, 5.0], 0),
}


def test_slices_change_with_cell_or_phase() -> None:
    assert cell_phase_slices(steps_of(TWO)) == [slice(0, 2), slice(2, 14), slice(14, 25)]
    assert cell_phase_slices(steps_of({})) == []
    assert cell_phase_slices(steps_of({("a", "test"): ([1.0], 0)})) == [slice(0, 1)]


def test_marked_and_detected_warmup_do_not_count() -> None:
    steps, phases = mark_steps(steps_of(TWO))
    kept = steps["kept"].tolist()
    assert kept == [False, True] + [False, False] + [True] * 10 + [True] * 11
    assert steps["outlier"].tolist() == [False] * 24 + [True]
    assert phases.columns.tolist() == PHASE_COLUMNS[:-3]
    assert phases[["cell", "phase"]].values.tolist() == [list(key) for key in TWO]
    assert phases["n"].tolist() == [1, 10, 11]
    assert phases["warmup_dropped"].tolist() == [1, 2, 0]
    assert phases["outliers"].tolist() == [0, 0, 1]
    assert phases["n_effective"][1] == effective_n(STEADY)
    assert phases["n_effective"][2] == effective_n([*STEADY, 5.0])
    assert phases["drift"][1] == drift(STEADY)
    assert math.isnan(phases["drift"][0])


def test_an_outlier_is_judged_among_the_steps_that_count() -> None:
    """A slow first step that is warm-up is no outlier, and does not hide one."""
    steps, phases = mark_steps(steps_of({("a", "train"): ([50.0, *STEADY, 1.2], 1)}))
    assert steps["outlier"].tolist() == [False] * 11 + [True]
    assert phases["outliers"].tolist() == [1]


@pytest.mark.parametrize(
    ("looked", "counted"), [([], 10), ([2], 9), ([0, 3, 5, 9], 7), ([1, 2, 3, 4, 5, 6], 10)]
)
def test_steps_that_were_looked_at_do_not_count(looked: list[int], counted: int) -> None:
    """Where as many others remain: of 9 that are no warm-up and one warm-up step, 5 or more."""
    steps = steps_of({("a", "train"): ([9.0, *STEADY], 1)})
    steps.loc[looked, "looked"] = True
    marked, phases = mark_steps(steps)
    assert phases["n"].tolist() == [counted] == [marked["kept"].sum()]
    assert phases["warmup_dropped"].tolist() == [1]
    assert phases["looked_dropped"].tolist() == [10 - counted]
    if counted < 10:
        assert not marked.loc[looked, "kept"].any()


def test_a_phase_of_warmup_alone_counts_nothing() -> None:
    steps, phases = mark_steps(steps_of({("a", "train"): ([3.0, 2.0, 1.0], 3)}))
    assert not steps["kept"].any()
    assert not steps["outlier"].any()
    assert phases["n"].tolist() == [0]
    assert phases["warmup_dropped"].tolist() == [3]


def test_warmup_alone_takes_nothing_from_the_next_phase() -> None:
    steps, phases = mark_steps(
        steps_of({("a", "test"): ([3.0, 2.0, 1.0], 3), ("a", "train"): (STEADY, 0)})
    )
    assert steps["kept"].tolist() == [False] * 3 + [True] * 10
    assert phases["n"].tolist() == [0, 10]


def test_warmup_in_the_midst_does_not_count_either() -> None:
    """As after a resume: the steps before it stay."""
    frame = steps_of({("a", "train"): ([*STEADY, 2.0, *STEADY], 0)})
    frame.loc[10, "warmup"] = True
    steps, phases = mark_steps(frame)
    assert steps["kept"].tolist() == [True] * 10 + [False] + [True] * 10
    assert not steps["outlier"].any()
    assert phases[["n", "warmup_dropped", "outliers"]].values.tolist() == [[20, 1, 0]]


def test_steps_of_an_unlike_attempt_are_neither_kept_nor_warmup() -> None:
    frame = steps_of({("a", "train"): ([2.0] * 3 + STEADY, 4)})
    frame.loc[:2, "unlike"] = True
    steps, phases = mark_steps(frame)
    assert steps["kept"].tolist() == [False] * 4 + [True] * 9
    assert phases[["n", "warmup_dropped", "unlike_dropped"]].values.tolist() == [[9, 1, 3]]


@given(
    st.lists(
        st.tuples(st.floats(0.5, 2.0), st.booleans(), st.booleans(), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 3),
)
def test_every_recorded_step_is_counted_once(
    recorded: list[tuple[float, bool, bool, bool]], slow: int
) -> None:
    """As one that counts, or by why it does not."""
    walls = [wall * (20.0 if place < slow else 1.0) for place, (wall, *_) in enumerate(recorded)]
    frame = steps_of({("a", "test"): (STEADY, 2), ("b", "train"): (walls, 0)})
    mine = (frame["cell"] == "b").to_numpy()
    for name, marks in zip(
        ("warmup", "looked", "unlike"), list(zip(*recorded, strict=True))[1:], strict=True
    ):
        frame.loc[mine, name] = list(marks)
    _, phases = mark_steps(frame)
    told = ["n", "warmup_dropped", "looked_dropped", "unlike_dropped"]
    assert phases[told].sum(axis=1).tolist() == [len(STEADY), len(recorded)]
    assert (phases[told] >= 0).all(axis=None)


def test_a_change_in_mid_run_is_no_warmup() -> None:
    noise = np.random.default_rng(6).normal(1.0, 0.01, 100)
    change = np.where(np.arange(100) < 50, 1.08, 1.0)
    _, phases = mark_steps(steps_of({("a", "train"): (list(change * noise), 0)}))
    assert phases["warmup_dropped"].tolist() == [0]
    assert phases["drift"][0] == pytest.approx(1 / 1.08 - 1, abs=0.01)


def test_counted_times_are_the_kept_ones_in_order() -> None:
    steps, _ = mark_steps(steps_of(TWO))
    found = counted_step_times(steps)
    assert {key: times.tolist() for key, times in found.items()} == {
        ("a", "test"): [8.0],
        ("a", "train"): STEADY,
        ("b", "train"): [*STEADY, 5.0],
    }


def ranks_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    usual = {
        "cell": "a",
        "phase": "train",
        "warmup": False,
        "wall_s": 2.0,
        "outside_s": 0.1,
        "forward_s": 0.4,
        "backward_s": 0.8,
        "optimizer_s": 0.3,
        "waiting_cpu_s": 0.0,
        "cpu_s": 1.2,
        "steal_s": 0.1,
        "involuntary_switches": 3,
    }
    frame = pd.DataFrame([usual | row for row in rows])
    return frame.astype({"cell": "category", "phase": "category"})


PHASES = pd.DataFrame({"cell": ["a"], "phase": ["train"], "n": [2]})


def test_shares_are_of_sums_without_warmup() -> None:
    ranks = ranks_of(
        [
            {},
            {
                "wall_s": 4.0,
                "backward_s": 2.3,
                "cpu_s": 3.0,
                "steal_s": 0.5,
                "involuntary_switches": 6,
            },
            {"warmup": True, "cpu_s": 100.0, "steal_s": 9.0, "involuntary_switches": 99},
        ]
    )
    found = add_noise_columns(PHASES, ranks)
    assert found["cpu_share"].tolist() == [pytest.approx(4.2 / 4.5)]
    assert found["steal_share"].tolist() == [pytest.approx(0.6 / 6.0)]
    assert found["switches_per_step"].tolist() == [pytest.approx(4.5)]
    assert found.columns.tolist() == ["cell", "phase", "n", *PHASE_COLUMNS[-3:]]


def test_what_the_system_does_not_report_is_missing() -> None:
    idle = {"forward_s": 0.0, "backward_s": 0.0, "optimizer_s": 0.0}
    ranks = ranks_of([{"steal_s": None} | idle]).astype({"steal_s": float})
    found = add_noise_columns(PHASES, ranks)
    assert found["steal_share"].isna().all()
    assert found["cpu_share"].isna().all(), "busy for no time at all"
    only = add_noise_columns(PHASES, ranks_of([{"cell": "b"}]))
    assert only["cell"].tolist() == ["a"]
    assert only["cpu_share"].isna().all()


def test_one_short_step_has_its_shares() -> None:
    short = {"wall_s": 0.5, "forward_s": 0.1, "backward_s": 0.2, "optimizer_s": 0.1}
    short |= {"cpu_s": 0.3, "steal_s": 0.05}
    found = add_noise_columns(PHASES, ranks_of([short]))
    assert found["cpu_share"].tolist() == [pytest.approx(0.75)]
    assert found["steal_share"].tolist() == [pytest.approx(0.1)]


def test_older_records_know_only_what_was_not_waiting() -> None:
    ranks = ranks_of([{"waiting_cpu_s": None, "outside_s": 0.4}, {"waiting_cpu_s": None}])
    found = add_noise_columns(PHASES, ranks.astype({"waiting_cpu_s": float}))
    assert found["cpu_share"].tolist() == [pytest.approx(2.4 / (1.6 + 1.9))]
