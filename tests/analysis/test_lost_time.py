"""A step taken apart: the parts add up, and each loss is found where it was put."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.loading.run import load
from analysis.summary.lost_time import COLUMNS, LostTime, StepSeconds, take_apart
from analysis.summary.summary_table import summarise
from gnnhpc.core.bounds import bound
from gnnhpc.core.schedule import ideal_step_s
from gnnhpc.experiment.manifest import assign_indices
from tests.analysis.test_summary import row, three, vig
from tests.tools.make_run import Machine, Story, make_run

SECONDS = st.floats(1e-4, 100.0)
ALONE = StepSeconds(step=1.0, passes=1.0)


def of_stages(stages: list[float], microbatches: int, **changes: float) -> LostTime:
    """A pipeline whose stages' passes take so many seconds a step, forward as long as backward."""
    each = [seconds / 2 / microbatches for seconds in stages]
    ideal = ideal_step_s("gpipe", each, each, microbatches)
    passes = sum(stages) / len(stages)
    step = StepSeconds(
        step=ideal + sum(changes.values()),
        passes=passes,
        outside=ideal - passes + changes.get("waits", 0.0),
        allreduce=changes.get("allreduce", 0.0),
    )
    stretch = (microbatches + len(stages) - 1) / microbatches
    return take_apart(step, ideal, ALONE, ALONE, ranks=len(stages), stretch=stretch)


@given(
    numbers=st.lists(SECONDS, min_size=11, max_size=11),
    replicas=st.integers(1, 8),
    stages=st.integers(1, 8),
    microbatches=st.integers(1, 64),
    has_same=st.booleans(),
)
def test_the_parts_add_up_to_the_step(
    numbers: list[float], replicas: int, stages: int, microbatches: int, has_same: bool
) -> None:
    step, best, same = (
        StepSeconds(*numbers[:5]),
        StepSeconds(*numbers[4:9]),
        StepSeconds(*numbers[6:11]),
    )
    lost = take_apart(
        step,
        numbers[0],
        best,
        same if has_same else None,
        ranks=replicas * stages,
        stretch=(microbatches + stages - 1) / microbatches,
    )
    assert math.isclose(lost.total, step.step, rel_tol=1e-9, abs_tol=1e-9)
    assert (lost.microbatches is None) is not has_same
    at_bound = best.step / bound(replicas, stages, microbatches)
    assert math.isclose(lost.linear + lost.schedule, at_bound, rel_tol=1e-9)


def test_equal_stages_lose_what_the_schedule_loses() -> None:
    lost = of_stages([0.5, 0.5], 5)
    assert lost.linear == pytest.approx(0.5)
    assert lost.schedule == pytest.approx(0.1)
    others = (
        lost.recomputation,
        lost.microbatches,
        lost.company,
        lost.imbalance,
        lost.waits,
        lost.allreduce,
        lost.rest,
    )
    assert others == pytest.approx((0.0,) * 7, abs=1e-12)


def test_rounding_of_zero_is_zero() -> None:
    lost = replace(of_stages([0.5, 0.5], 5), company=1.11e-16, waits=-2.2e-16, rest=1e-9)
    columns = lost.columns()
    assert (columns["lost_company_s"], columns["lost_waits_s"]) == (0.0, 0.0)
    assert (columns["lost_rest_s"], columns["lost_linear_s"]) == (1e-9, lost.linear)
    assert replace(lost, microbatches=None).columns()["lost_microbatches_s"] is None


def test_a_slow_stage_is_imbalance() -> None:
    lost = of_stages([0.6, 0.4], 5)
    assert lost.company == pytest.approx(0.0, abs=1e-12)
    # Of equal stages 6/5 of a half; the slow one alone works 0.6, and the other's first and last.
    assert lost.imbalance == pytest.approx(0.6 + 0.4 / 5 - 0.6)


def test_slower_layers_are_company() -> None:
    lost = of_stages([0.55, 0.55], 5)
    assert lost.company == pytest.approx(0.05 * 6 / 5)
    assert lost.imbalance == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("what", ["waits", "allreduce", "rest"])
def test_what_a_step_has_beside_its_passes(what: str) -> None:
    lost = of_stages([0.5, 0.5], 5, **{what: 0.07})
    assert getattr(lost, what) == pytest.approx(0.07)
    assert lost.total == pytest.approx(0.67)


def test_what_lies_between_spans_of_one_rank_is_no_wait() -> None:
    """Ranks have their share of it too; what they have beyond that is waiting."""
    best = StepSeconds(step=1.3, passes=1.0, outside=0.2)
    more = StepSeconds(step=1.4, passes=1.0, outside=0.3)
    alone = take_apart(more, 1.0, best, best, ranks=1, stretch=1.0)
    assert (alone.waits, alone.rest) == pytest.approx((0.0, 0.1))
    step = StepSeconds(step=0.7, passes=0.5, outside=0.15)
    lost = take_apart(step, 0.5, best, best, ranks=2, stretch=1.0)
    assert (lost.waits, lost.rest) == pytest.approx((0.05, 0.0))
    assert lost.total == pytest.approx(0.7)


def test_micro_batches_cost_what_they_cost_alone() -> None:
    same = StepSeconds(step=1.1, passes=1.1)
    step = StepSeconds(step=0.66, passes=0.55, outside=0.11)
    lost = take_apart(step, 0.66, ALONE, same, ranks=2, stretch=6 / 5)
    assert lost.microbatches == pytest.approx(0.06)
    assert lost.company == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("alone_too", [False, True])
def test_forwards_computed_again_are_no_company(alone_too: bool) -> None:
    """A third more than forwards and backwards; no loss where the sequential run does so too."""
    step = StepSeconds(step=0.8, passes=2 / 3, outside=0.8 - 2 / 3, recomputed=1 / 6)
    best = StepSeconds(4 / 3, 4 / 3, recomputed=1 / 3) if alone_too else ALONE
    lost = take_apart(step, 0.8, best, best, ranks=2, stretch=6 / 5)
    assert lost.recomputation == pytest.approx(0.0 if alone_too else 0.2)
    assert (lost.company, lost.microbatches) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert lost.total == pytest.approx(0.8)


def test_the_summary_takes_its_steps_apart(tmp_path: Path) -> None:
    experiments = [vig(), vig("seq", 5), vig("pp2", 5), vig("dp2", 1), vig("pp2", 10)]
    summary = summarise(load(make_run(tmp_path / "run", three(*experiments))))
    with warnings.catch_warnings():
        # Of a frame in many pieces, by which reports of wide summaries printed a page of words.
        warnings.simplefilter("error")
        summary.assign(**{f"more{number}": 1.0 for number in range(60)})
    for layout, microbatches in (("seq", 5), ("pp2", 5), ("dp2", 1), ("pp2", 10)):
        one = row(summary, layout, microbatches)
        assert one[list(COLUMNS)].sum() == pytest.approx(one["mean_s"])
        assert one["of_bound"] == pytest.approx(one["speedup"] / one["bound"])
        assert one["of_bound_low"] < one["of_bound"] < one["of_bound_high"]
    # No sequential run in ten micro-batches: what these cost is part of company.
    assert math.isnan(row(summary, "pp2", 10)["lost_microbatches_s"])
    assert row(summary, "seq", 1)["lost_linear_s"] == pytest.approx(
        row(summary, "seq", 1)["mean_s"]
    )
    assert math.isnan(row(summary, "pp2", 5, "test")["lost_linear_s"])


def test_replicas_are_held_against_as_many_samples(tmp_path: Path) -> None:
    """Two replicas take twice the samples of a sequential step, each as many as it."""
    run = load(make_run(tmp_path / "run", three(vig(), vig("dp2", 1))))
    summary = summarise(run)
    alone = row(summary, "seq", 1)["mean_s"]
    assert row(summary, "dp2", 1)["lost_linear_s"] == pytest.approx(alone)


def mean_of_means(seconds: Mapping[str, list[float]]) -> float:
    """`seconds` are of the steps of each run."""
    return statistics.fmean(statistics.fmean(of_run) for of_run in seconds.values())


def test_the_ideal_is_the_mean_of_all_steps_that_count(tmp_path: Path) -> None:
    """Of steps that vary, and of runs of which one has fewer that count."""
    experiments = [
        one.model_copy(update={"warmup_steps": 2}) for one in three(vig(), vig("pp2", 5))
    ]
    shorter = next(
        each for each in assign_indices(experiments) if each.experiment.layout.stages > 1
    )
    stories = {
        shorter.id: [
            Story(status="interrupted", finished=False, stop_at=5),
            Story(resumed_from={"attempt": 1, "step": 5}),
        ]
    }
    machine = Machine(noise=0.3)
    run = load(make_run(tmp_path / "run", experiments, stories=stories, machine=machine))
    train = run.steps[run.steps["kept"] & (run.steps["phase"] == "train")]
    counted = train.groupby("cell", observed=True).size()
    assert counted[shorter.id] < counted.max()
    ideals: dict[str, list[float]] = {}
    passes: dict[str, list[float]] = {}
    for cell, step in train[["cell", "step"]].itertuples(index=False):
        ranks = run.ranks[(run.ranks["cell"] == cell) & (run.ranks["phase"] == "train")]
        stages = ranks[ranks["step"] == step].sort_values("stage")
        if len(stages) == 2:
            forward, backward = (
                (stages[f"{way}_s"] / 5).tolist() for way in ("forward", "backward")
            )
            ideals.setdefault(cell, []).append(ideal_step_s("gpipe", forward, backward, 5))
            passes.setdefault(cell, []).append(5 * (sum(forward) + sum(backward)) / 2)
    one = row(summarise(run), "pp2", 5)
    assert sum(map(len, ideals.values())) == one["n"]
    imbalance = mean_of_means(ideals) - mean_of_means(passes) * 6 / 5
    assert one["lost_imbalance_s"] == pytest.approx(imbalance)
    assert one[list(COLUMNS)].sum() == pytest.approx(one["mean_s"])
