"""Gradients of weights apart from those of inputs (zero-bubble): seconds, ideal, bound, report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.figures import speedup
from analysis.figures.studies import find_studies
from analysis.figures.waterfall import waterfall
from analysis.loading.joined_runs import load_runs
from analysis.loading.run import Run, load
from analysis.papers.corrected_study import corrected_study_frame
from analysis.papers.gat_runs import GatRows
from analysis.papers.vig_tables_beside_ours import vig_tables
from analysis.report.report_tables import efficiency_table
from analysis.stats.split_backward import shares_of
from analysis.summary.ideal_step import Passes, ideal_seconds
from analysis.summary.lost_time import COLUMNS
from analysis.summary.summary_table import summarise
from gnnhpc.core.bounds import bound, bound_with_weights, ideal_bubble
from gnnhpc.core.schedule import ideal_step_s
from gnnhpc.data.published import PublishedGraph
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.gat.model import Gat
from tests.analysis.test_first_page import words_of
from tests.analysis.test_several_parts import change_records
from tests.analysis.test_summary import row, summary_of, three, vig
from tests.tools.make_run import Machine, make_run

# Seconds of a micro-batch in each stage of pp2.
FORWARD, BACKWARD, WEIGHTS = (1.0, 2.0), (2.0, 1.0), (3.0, 2.0)
"""By hand, of two micro-batches; backward is of inputs alone:
stage 0: F0 0-1, F1 1-2, B0 4-6, W0 6-9, B1 9-11, W1 11-14
stage 1: F0 1-3, B0 3-4, F1 4-6, B1 6-7, W0 7-9, W1 9-11
"""
BY_HAND = 14.0
THIRDS = (1.0, 1.0, 1.0)
"""What the made-up machine takes unless told otherwise."""


def zero_bubble(layout: str, microbatches: int, **changes: object) -> Experiment:
    return vig(layout, microbatches, schedule="zero-bubble", **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    experiments = three(
        vig(),
        vig("seq", 4),
        vig("pp2", 4),
        vig("pp2", 4, schedule="1f1b"),
        zero_bubble("pp2", 4),
        zero_bubble("dp2-pp2", 4),
        zero_bubble("pp4", 4),
        zero_bubble("pp4", 2),
    )
    return load(make_run(tmp_path_factory.mktemp("weights") / "run", experiments))


@pytest.fixture(scope="module")
def summary(run: Run) -> pd.DataFrame:
    return summarise(run)


def test_seconds_of_weights_are_of_pipelines_under_the_schedule(run: Run) -> None:
    assert run.cells["valid"].all()
    apart = run.cells.loc[run.cells["schedule"] == "zero-bubble", "cell"]
    mine = run.ranks["cell"].isin(apart)
    assert run.ranks.loc[~mine, "weights_s"].isna().all()
    np.testing.assert_allclose(
        run.ranks.loc[mine, "weights_s"], run.ranks.loc[mine, "backward_s"] / 2
    )
    keys = ["cell", "phase", "step"]
    means = run.ranks[mine].groupby(keys, observed=True)["weights_s"].mean()
    steps = run.steps[run.steps["cell"].isin(apart)].set_index(keys)["weights_s"]
    np.testing.assert_allclose(steps, means.loc[steps.index])
    assert run.steps.loc[~run.steps["cell"].isin(apart), "weights_s"].isna().all()


def test_a_single_stage_has_nothing_apart(tmp_path: Path) -> None:
    cells = [zero_bubble("seq", 4, spans=True), zero_bubble("dp2", 4)]
    found = load(make_run(tmp_path / "run", cells))
    assert found.cells["valid"].all()
    assert found.ranks["weights_s"].isna().all()
    assert "weights" not in set(found.spans["name"])
    summary = summarise(found)
    assert summary["efficiency"].to_numpy() == pytest.approx(1 / 1.02)
    assert row(summary, "dp2", 4)["bound"] == 2.0
    assert summary["weights_s"].isna().all() and summary["weights_share"].isna().all()


def test_older_records_know_no_weights(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", [vig("pp2", 4)])
    change_records(root, lambda record: record.pop("weights_s", None))
    found = load(root)
    assert found.cells["valid"].all()
    assert found.ranks["weights_s"].isna().all()


def without_weights(record: dict[str, Any]) -> None:
    record["weights_s"] = None


def more_than_backward(record: dict[str, Any]) -> None:
    record["weights_s"] = record["backward_s"] + 0.5


def less_than_nothing(record: dict[str, Any]) -> None:
    record["weights_s"] = -0.5


@pytest.mark.parametrize("phase", ["train", "test"])
@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (without_weights, "found nan"),
        (more_than_backward, "found "),
        (less_than_nothing, "found -0.5"),
    ],
)
def test_a_step_without_its_seconds_of_weights_is_damage(
    tmp_path: Path, phase: str, damage: Callable[[dict[str, Any]], None], found: str
) -> None:
    root = make_run(tmp_path / "run", [zero_bubble("pp2", 4), vig("pp2", 4)])

    def change(record: dict[str, Any]) -> None:
        told = record.get("weights_s") is not None
        if told and (record["phase"], record["step"]) == (phase, 2):
            damage(record)

    change_records(root, change)
    damaged = load(root)
    assert damaged.cells["status"].tolist() == ["damaged", "done"]
    detail = damaged.checks["detail"].iloc[0]
    assert f"{phase} step 2: weights_s: {found}" in detail
    assert "allowed: 0 to " in detail and "as it is a part of backward_s" in detail


@pytest.mark.parametrize(
    "cell", [vig("pp2", 4, schedule="1f1b"), zero_bubble("seq", 4)], ids=["1f1b", "one stage"]
)
def test_weights_where_they_cannot_be_apart_are_damage(tmp_path: Path, cell: Experiment) -> None:
    cell = cell.model_copy(update={"spans": True})
    only = "none but of a pipeline under schedule zero-bubble"

    def told(record: dict[str, Any]) -> None:
        if record["kind"] == "step":
            record["weights_s"] = 0.0

    root = make_run(tmp_path / "step", [cell])
    change_records(root, told)
    detail = load(root).checks["detail"].iloc[0]
    assert f"train step 0: weights_s: found 0.0; allowed: {only}" in detail

    def renamed(record: dict[str, Any]) -> None:
        if record["kind"] == "span" and record["name"] == "backward":
            record["name"] = "weights"

    root = make_run(tmp_path / "span", [cell])
    change_records(root, renamed)
    detail = load(root).checks["detail"].iloc[0]
    assert f"name of a span: found weights; allowed: {only}" in detail


def test_the_ideal_step_is_the_one_worked_out_by_hand() -> None:
    steps = np.array([1.0, 10.0])
    ways = [[seconds * steps for seconds in way] for way in (FORWARD, BACKWARD, WEIGHTS)]
    found = ideal_seconds("zero-bubble", Passes(*ways), 2, training=True)
    assert found.tolist() == [BY_HAND, 10 * BY_HAND]
    forward, backward, weights = ways
    exchanged = ideal_seconds("zero-bubble", Passes(forward, weights, backward), 2, training=True)
    assert exchanged[0] != BY_HAND


def test_the_ideal_of_a_run_is_of_both_halves_seconds(tmp_path: Path) -> None:
    """With the whole backward before a gradient goes on, the same seconds make another step."""
    root = make_run(tmp_path / "run", [zero_bubble("dp2-pp2", 2)])
    scale, wall, place = 0.01, 0.25, {"stage": 0, "replica": 0}

    def change(record: dict[str, Any]) -> None:
        if record["kind"] == "header":
            place.update({name: record[name] for name in place})
            return
        training, stage = record["phase"] == "train", place["stage"]
        # The second replica takes half as long, so the first one's ideal is the step's. A record
        # is of both micro-batches.
        of = 2 * scale / (1 + place["replica"])
        record["forward_s"] = of * FORWARD[stage]
        record["weights_s"] = of * WEIGHTS[stage] if training else 0.0
        record["backward_s"] = of * (WEIGHTS[stage] + BACKWARD[stage]) if training else 0.0
        record["wall_s"] = wall
        record["start_s"] = record["step"] + (0.0 if training else 50.0)

    change_records(root, change)
    found = summarise(load(root))
    one, test = row(found, "dp2-pp2", 2), row(found, "dp2-pp2", 2, "test")
    assert one["ideal_step_s"] == pytest.approx(scale * BY_HAND)
    assert test["ideal_step_s"] == pytest.approx(scale * (1 + 2 + 2))
    whole = [both + later for both, later in zip(BACKWARD, WEIGHTS, strict=True)]
    assert ideal_step_s("zero-bubble", FORWARD, whole, 2) != BY_HAND
    # Of a rank on average: 1.5 forward, 1.5 of inputs, 2.5 of weights; and three quarters of that.
    assert one["bound"] == pytest.approx(
        bound_with_weights("zero-bubble", 2, 2, 2, (1.5, 1.5, 2.5))
    )
    assert one["weights_s"] == pytest.approx(0.75 * 2 * scale * 2.5)
    assert one["weights_share"] == pytest.approx(2.5 / 4)
    assert test["bound"] == bound(2, 2, 2)
    assert test["weights_s"] == 0.0 and np.isnan(test["weights_share"])


SECONDS = st.floats(1e-3, 10.0)


@given(forward=SECONDS, backward=SECONDS, share=st.floats(0.0, 1.0))
def test_shares_are_parts_of_what_was_measured(
    forward: float, backward: float, share: float
) -> None:
    shares = shares_of(forward, backward, share * backward)
    assert shares is not None
    assert min(shares) >= 0.0
    assert sum(shares) == pytest.approx(forward + backward)
    assert shares[2] == share * backward


@pytest.mark.parametrize(
    "seconds", [(0.0, 0.0, 0.0), (1.0, 1.0, float("nan")), (float("nan"), 1.0, 0.5)]
)
def test_there_are_no_shares_of_what_nobody_measured(
    seconds: tuple[float, float, float],
) -> None:
    assert shares_of(*seconds) is None


def test_bounds_are_of_the_measured_shares(summary: pd.DataFrame) -> None:
    of_zero_bubble = summary[(summary["schedule"] == "zero-bubble") & (summary["phase"] == "train")]
    for _, one in of_zero_bubble.iterrows():
        place = int(one["replicas"]), int(one["stages"]), int(one["microbatches"])
        assert one["bound"] == pytest.approx(bound_with_weights("zero-bubble", *place, THIRDS))
        assert one["bound"] > bound(*place)
        ranks = place[0] * place[1]
        assert one["balanced_bubble"] == pytest.approx(1 - one["bound"] / ranks)
        assert one["of_bound"] == pytest.approx(one["speedup"] / one["bound"])
    assert len(of_zero_bubble) == 4
    # As of three parts a stage.
    pp2 = row(summary, "pp2", 4, schedule="zero-bubble")
    assert pp2["bound"] == pytest.approx(bound(1, 2, 4, 3))
    assert row(summary, "pp2", 4, schedule="1f1b")["bound"] == bound(1, 2, 4)
    assert row(summary, "pp4", 4, "test")["bound"] == pytest.approx(bound(1, 4, 4))
    others = summary[~summary["schedule"].eq("zero-bubble") | (summary["phase"] == "test")]
    for _, one in others.iterrows():
        waited = ideal_bubble(int(one["stages"]), int(one["microbatches"]))
        assert one["balanced_bubble"] == pytest.approx(waited, abs=1e-12)
    # The made-up machine adds two percent to the ideal, nothing else.
    assert summary["efficiency"].to_numpy() == pytest.approx(1 / 1.02)


def test_a_bound_over_a_zero_bubble_pipeline_is_a_ratio_of_both(run: Run) -> None:
    summary = summarise(run, "pp2:4")
    of_pp2 = bound_with_weights("zero-bubble", 1, 2, 4, THIRDS)
    assert row(summary, "pp2", 4, schedule="zero-bubble")["bound"] == pytest.approx(1.0)
    four = row(summary, "pp4", 4)
    assert four["bound"] == pytest.approx(
        bound_with_weights("zero-bubble", 1, 4, 4, THIRDS) / of_pp2
    )
    # Of several pp2 with four micro-batches, the one of the same schedule.
    assert row(summary, "pp2", 4, schedule="1f1b")["bound"] == pytest.approx(1.0)


def test_a_row_that_measured_nothing_has_no_bound(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", [vig(), zero_bubble("pp2", 4)])
    for path in root.glob("cells/*pp2*/attempt-1/result.json"):
        path.unlink()
    one = row(summarise(load(root)), "pp2", 4)
    assert one["n"] == 0
    assert np.isnan(one["bound"]) and np.isnan(one["balanced_bubble"])


@pytest.mark.parametrize(
    ("dearer", "flags"), [(1.06, ("above-bound", "")), (1.2, ("above-bound", "above-bound"))]
)
def test_a_speedup_is_held_against_ranks_that_never_wait(
    tmp_path: Path, dearer: float, flags: tuple[str, str]
) -> None:
    """Unlike stages may wait less than balanced ones, but none works more than all the time."""
    cells = three(vig(), vig("pp2", 4), zero_bubble("pp2", 4))
    summary = summary_of(tmp_path / "run", cells, machine=Machine(sequential=dearer))
    plain, apart = (row(summary, "pp2", 4, schedule=name) for name in ("gpipe", "zero-bubble"))
    assert plain["speedup_low"] > plain["bound"] and apart["speedup_low"] > apart["bound"]
    assert (plain["flags"], apart["flags"]) == flags
    assert ("above the bound 2.000" in apart["note"]) == bool(flags[1])
    assert ("of ranks that never wait" in apart["note"]) == bool(flags[1])
    assert "of ranks that never wait" not in plain["note"]


def test_the_waterfall_adds_up(run: Run, summary: pd.DataFrame) -> None:
    for layout, microbatches in (("pp2", 4), ("dp2-pp2", 4), ("pp4", 4), ("pp4", 2)):
        one = row(summary, layout, microbatches, schedule="zero-bubble")
        assert one[list(COLUMNS)].sum() == pytest.approx(one["mean_s"])
        ranks = int(one["replicas"]) * int(one["stages"])
        at_bound = one["lost_linear_s"] + one["lost_schedule_s"]
        assert at_bound == pytest.approx(one["lost_linear_s"] * ranks / one["bound"])
    (study,) = find_studies(run, summary)
    figure = waterfall(study)
    assert not isinstance(figure, str)
    titles = ["".join(axes.get_title(loc="left").split()) for axes in figure.axes]
    assert any(title.startswith("pp2,4micro-batches,zero-bubble:") for title in titles)


def test_figures_have_ticks_at_the_bound_of_each_schedule(run: Run, summary: pd.DataFrame) -> None:
    (study,) = find_studies(run, summary)
    for draw, column, factor in (
        (speedup.speedup, "bound", 1.0),
        (speedup.bubble, "balanced_bubble", 100.0),
    ):
        figure = draw(study)
        assert not isinstance(figure, str)
        found = {}
        for axes in figure.axes:
            # The caps of intervals are such marks too, and shorter.
            found[axes.get_title(loc="left")] = {
                round(float(height), 9)
                for line in axes.get_lines()
                if line.get_marker() == "_" and line.get_markersize() > 10
                for height in np.asarray(line.get_ydata())
            }
        for title, heights in found.items():
            rows = summary[(summary["schedule"] == title) & (summary["phase"] == "train")]
            assert heights == {round(factor * value, 9) for value in rows[column]}
        assert {"1f1b", "zero-bubble"} <= set(found)


def test_joined_runs_keep_the_seconds_of_weights(tmp_path: Path) -> None:
    roots = [
        make_run(tmp_path / "first", [zero_bubble("pp2", 4), vig()]),
        make_run(tmp_path / "second", [vig("pp2", 4), vig(repeat=1)]),
    ]
    found = summarise(load_runs(roots))
    one = row(found, "pp2", 4, schedule="zero-bubble")
    assert one["efficiency"] == pytest.approx(1 / 1.02)
    assert one["weights_share"] == pytest.approx(0.5)
    assert np.isnan(row(found, "pp2", 4, schedule="gpipe")["weights_s"])


def gat(layout: str, microbatches: int, **changes: object) -> Experiment:
    fields = {"model": Gat(), "data": PublishedGraph(name="cora"), "train_steps": 8}
    chosen = {"layout": layout, "microbatches": microbatches}
    return Experiment.model_validate(fields | chosen | changes)


def test_a_model_that_has_no_weights_apart_is_named(tmp_path: Path) -> None:
    """Under a twentieth of backward; at a twentieth and above nothing is said."""
    share = {"gat": 0.049, "vig": 0.051}
    machine = Machine(weights=lambda experiment: share[experiment.model.name])
    apart = {"schedule": "zero-bubble"}
    cells = [zero_bubble("pp2", 4), gat("pp2", 2, **apart), gat("pp2", 4, **apart), gat("pp2", 4)]
    root = make_run(tmp_path / "run", cells, machine=machine)
    summary = summarise(load(root))
    said = (
        "Model gat on cora (pp2, 2 micro-batches; pp2, 4 micro-batches): gradients of weights "
        "apart took 4.9% of backward at most, as its layers compute both halves in one. So "
        "zero-bubble is 1F1B there in all but name, and does not pay."
    )
    paragraphs, _ = words_of(root)
    assert said in paragraphs
    assert "Model vig" not in paragraphs
    table = efficiency_table(summary)
    assert table.notes[-1] == said
    assert any("weights_s: of the step" in note for note in table.notes)
    shown = table.frame[table.frame["schedule"] == "zero-bubble"]
    trained = shown[shown["phase"] == "train"].set_index("model")["weights_share"]
    assert trained["vig"] == pytest.approx(0.051)
    assert trained["gat"].tolist() == pytest.approx([0.049] * 2)


def test_runs_without_the_schedule_say_nothing_of_it(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", [vig(), vig("pp2", 4, schedule="1f1b")])
    summary = summarise(load(root))
    assert summary["weights_s"].isna().all()
    table = efficiency_table(summary)
    assert "weights_s" not in table.frame and not any("weights" in note for note in table.notes)
    assert "zero-bubble" not in words_of(root)[0]


def test_no_study_has_weights_apart(tmp_path: Path) -> None:
    pubmed = PublishedGraph(name="pubmed")
    cells = [gat("pp4", 4, data=pubmed), gat("pp4", 4, data=pubmed, schedule="zero-bubble")]
    cells += [vig(), vig("pp2", 10), zero_bubble("pp2", 10)]
    found = load(make_run(tmp_path / "run", cells))
    table = summarise(found)
    assert len(table[(table["layout"] == "pp2") & (table["phase"] == "train")]) == 2
    (graphs,) = GatRows(found, table)
    assert graphs.settings["schedule"] == "gpipe"
    study = corrected_study_frame(table, found)
    mine = study[study["ours"].notna() & (study["setting"] == "pp2, 10 micro-batches")]
    assert mine["phase"].tolist() == ["train", "test"]
    (of_pp2,) = [one for one in vig_tables(found, table) if ": pp2, 10 micro" in one.title]
    assert (of_pp2.frame["source"] != "published").sum() == 2
