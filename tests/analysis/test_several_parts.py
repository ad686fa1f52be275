"""Interleaved pipelines: every number of a stage of several parts is of its parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.figures.catalog import timeline_cells
from analysis.figures.studies import figure_label, find_studies
from analysis.figures.waterfall import waterfall
from analysis.loading.joined_runs import load_runs
from analysis.loading.run import Run, load
from analysis.papers.corrected_study import corrected_study_frame
from analysis.papers.gat_runs import GatRows
from analysis.papers.vig_tables_beside_ours import vig_tables
from analysis.report.settings_columns import with_study
from analysis.summary.ideal_step import Passes, ideal_seconds
from analysis.summary.lost_time import COLUMNS, StepSeconds, take_apart
from analysis.summary.summary_table import summarise
from analysis.summary.varying_settings import settings_in_words
from gnnhpc.core.bounds import bound
from gnnhpc.core.schedule import ideal_step_s, timeline
from gnnhpc.data.published import PublishedGraph
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.gat.model import Gat
from tests.analysis.test_summary import row, vig
from tests.tools.make_run import make_run

# Seconds of a micro-batch in part p of stage s, which is number 2 p + s, of pp2 in two parts.
FORWARD, BACKWARD = (1.0, 2.0, 4.0, 1.0), (2.0, 1.0, 4.0, 2.0)
"""By hand, of two micro-batches:
stage 0: F0 0-1, F1 1-2, F0' 3-7, F1' 7-11, B0' 11-15, B1' 15-19, B0 19-21, B1 21-23
stage 1: F0 1-3, F1 3-5, F0' 7-8, B0' 8-10, F1' 11-12, B1' 12-14, B0 15-16, B1 19-20
"""
BY_HAND = 23.0


def interleaved(layout: str, microbatches: int, parts: int, **changes: object) -> Experiment:
    several = {"schedule": "interleaved", "virtual_stages": parts}
    return vig(layout, microbatches, **several, **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    experiments = [
        one
        for repeat in range(3)
        for one in (
            vig(repeat=repeat),
            vig("seq", 4, repeat=repeat),
            vig("pp2", 4, repeat=repeat, spans=True),
            interleaved("pp2", 4, 2, repeat=repeat, spans=True),
            interleaved("pp2", 4, 4, repeat=repeat, spans=True),
            interleaved("dp2-pp2", 4, 2, repeat=repeat),
            interleaved("pp4", 4, 2, repeat=repeat),
        )
    ]
    return load(make_run(tmp_path_factory.mktemp("parts") / "run", experiments))


@pytest.fixture(scope="module")
def summary(run: Run) -> pd.DataFrame:
    return summarise(run)


def test_records_of_parts_add_up_to_their_stage(run: Run) -> None:
    assert run.cells["valid"].all()
    cells = run.cells[run.cells["parts"] > 1]
    assert set(run.parts["cell"]) == set(cells["cell"])
    keys = ["cell", "phase", "step", "rank"]
    sums = run.parts.groupby(keys, observed=True)[["forward_s", "backward_s"]].sum()
    stages = run.ranks[run.ranks["cell"].isin(cells["cell"])].set_index(keys)
    np.testing.assert_allclose(sums, stages.loc[sums.index, ["forward_s", "backward_s"]])
    assert len(sums) == len(stages)
    assert (run.ranks["timed_parts"].isin([0, 2, 4])).all()
    # What a step's record has of parts is no metric of the step.
    assert "timed_parts" not in run.steps and "part_s" not in run.ranks


def test_spans_say_their_part(run: Run) -> None:
    parts = run.cells.set_index("cell")["parts"]
    spans = run.spans[run.spans["name"].isin(["forward", "backward"])]
    for cell, mine in spans.groupby("cell", observed=True):
        assert set(mine["part"]) == set(range(parts[cell]))
    assert (run.spans.loc[run.spans["name"] == "wait", "part"] == 0).all()


def test_older_records_are_of_stages_of_one_part(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", [vig("pp2", 4, spans=True)])

    def older(record: dict[str, Any]) -> None:
        record.pop("part", None)
        record.pop("part_s", None)

    change_records(root, older)
    found = load(root)
    assert found.cells["valid"].all()
    assert set(found.spans["part"]) == {0}
    assert found.parts.empty
    assert summarise(found)["efficiency"].notna().all()


def change_records(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    for path in root.rglob("rank-*.jsonl"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for record in lines:
            change(record)
            if record["kind"] == "step":
                busy = ("forward_s", "backward_s", "allreduce_s", "optimizer_s")
                record["wait_s"] = record["wall_s"] - sum(record[name] for name in busy)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def without_a_part(record: dict[str, Any]) -> None:
    record["part_s"].pop()


def without_parts(record: dict[str, Any]) -> None:
    del record["part_s"]


def half_a_pair(record: dict[str, Any]) -> None:
    record["part_s"][1] = [1.0]


def negative(record: dict[str, Any]) -> None:
    first = record["part_s"][0]
    record["part_s"] = [[-1.0, first[1]], [record["forward_s"] + 1.0, first[1]]]


def more_than_the_stage(record: dict[str, Any]) -> None:
    record["part_s"][1][1] += 0.5


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (without_a_part, "train step 5: timed_parts: found 1; allowed: 2: as many as the stage"),
        (without_parts, "train step 5: timed_parts: found 0; allowed: 2: as many as the stage"),
        (half_a_pair, "train step 5: part_s: found another form; allowed: forward, backward"),
        (negative, "allowed: seconds, as a clock gives them"),
        (more_than_the_stage, "allowed: what adds up to backward_s, "),
    ],
)
def test_a_step_without_the_seconds_of_each_part_is_damage(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], says: str
) -> None:
    root = make_run(tmp_path / "run", [interleaved("pp2", 4, 2), vig("pp2", 4)])

    def change(record: dict[str, Any]) -> None:
        if record.get("part_s") and (record["phase"], record["step"]) == ("train", 5):
            damage(record)

    change_records(root, change)
    found = load(root)
    assert found.cells["status"].tolist() == ["damaged", "done"]
    assert says in found.checks["detail"].iloc[0]


def test_parts_of_a_stage_that_has_one_are_damage(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", [vig("pp2", 4, spans=True)])

    def told(record: dict[str, Any]) -> None:
        if record["kind"] == "step":
            record["part_s"] = [[record["forward_s"], record["backward_s"]]]

    change_records(root, told)
    assert "found 1; allowed: none of a stage of one part" in load(root).checks["detail"].iloc[0]
    root = make_run(tmp_path / "other", [interleaved("pp2", 4, 2, spans=True)])

    def third(record: dict[str, Any]) -> None:
        if record["kind"] == "span" and record["name"] == "backward":
            record["part"] += 1

    change_records(root, third)
    assert "part of a span: found 2; allowed: 0 to 1" in load(root).checks["detail"].iloc[0]


def test_the_ideal_step_of_unequal_parts_is_the_one_worked_out_by_hand() -> None:
    steps = np.array([1.0, 10.0])
    passes = Passes(*([seconds * steps for seconds in way] for way in (FORWARD, BACKWARD)))
    found = ideal_seconds("interleaved", passes, 2, parts=2, training=True)
    assert found.tolist() == [BY_HAND, 10 * BY_HAND]
    slots = timeline("interleaved", FORWARD, BACKWARD, 2, parts=2)
    assert max(slot.end_s for slot in slots) == BY_HAND


def test_the_ideal_of_a_run_is_of_its_parts_seconds(tmp_path: Path) -> None:
    """Shared equally between its parts, the same seconds of a stage would make another step."""
    root = make_run(tmp_path / "run", [interleaved("dp2-pp2", 2, 2)])
    scale, wall, place = 0.01, 0.25, {"stage": 0, "replica": 0}

    def change(record: dict[str, Any]) -> None:
        if record["kind"] == "header":
            place.update({name: record[name] for name in place})
            return
        training = record["phase"] == "train"
        # The second replica takes half as long, so the first one's ideal is the step's.
        of = 2 * scale / (1 + place["replica"])
        record["part_s"] = [
            [of * FORWARD[number], of * BACKWARD[number] if training else 0.0]
            for number in (place["stage"], 2 + place["stage"])
        ]
        record["forward_s"], record["backward_s"] = np.sum(record["part_s"], axis=0).tolist()
        record["wall_s"] = wall
        record["start_s"] = record["step"] + (0.0 if training else 50.0)

    change_records(root, change)
    found = summarise(load(root))
    assert row(found, "dp2-pp2", 2)["ideal_step_s"] == pytest.approx(scale * BY_HAND)
    assert row(found, "dp2-pp2", 2)["efficiency"] == pytest.approx(scale * BY_HAND / wall)
    shared = ideal_step_s("interleaved", [2.5, 1.5] * 2, [3, 1.5] * 2, 2, parts=2)
    assert shared != BY_HAND


def test_bounds_and_efficiency_are_of_the_parts(summary: pd.DataFrame) -> None:
    assert row(summary, "pp2", 4, parts=1)["bound"] == pytest.approx(2 * 4 / 5)
    assert row(summary, "pp2", 4, parts=2)["bound"] == pytest.approx(2 * 4 / 4.5)
    assert row(summary, "pp2", 4, parts=4)["bound"] == pytest.approx(2 * 4 / 4.25)
    assert row(summary, "pp4", 4)["bound"] == pytest.approx(4 * 4 / 5.5)
    assert row(summary, "dp2-pp2", 4)["bound"] == pytest.approx(2 * 2 * 4 / 4.5)
    # The made-up machine adds two percent to the ideal, nothing else.
    assert summary["efficiency"].to_numpy() == pytest.approx(1 / 1.02)
    assert (summary["n"] > 0).all()


def test_rows_that_differ_in_parts_are_rows_apart_over_one_baseline(
    run: Run, summary: pd.DataFrame
) -> None:
    train = summary[summary["phase"] == "train"]
    assert list(zip(train["schedule"], train["parts"], strict=True)).count(("gpipe", 1)) == 3
    assert train["speedup"].notna().all()
    assert set(train["cells_used"]) == {3}
    again = summarise(run, "pp2:4")
    # Of several pp2 with four micro-batches, the one of as many parts.
    assert row(again, "pp2", 4, parts=4)["speedup"] == pytest.approx(1.0)
    assert row(again, "pp2", 4, parts=4)["bound"] == pytest.approx(1.0)
    of_pp4 = row(again, "pp4", 4)
    assert of_pp4["bound"] == pytest.approx(bound(1, 4, 4, 2) / bound(1, 2, 4, 2))


def test_labels_say_the_parts_with_the_schedule(run: Run, summary: pd.DataFrame) -> None:
    told = {"schedule": "interleaved", "virtual_stages": 2, "batchnorm": "micro"}
    assert figure_label(told) == "interleaved, 2 parts, batchnorm micro"
    assert settings_in_words(told, list(told)) == "schedule interleaved, 2 parts, batchnorm micro"
    assert figure_label({"schedule": "gpipe", "parts": 1}) == "gpipe"
    assert figure_label({"parts": 4}) == "parts 4"
    studies = with_study(summary[summary["layout"] == "pp2"])["study"]
    assert set(studies) == {"gpipe", "interleaved, 2 parts", "interleaved, 4 parts"}
    (study,) = find_studies(run, summary)
    panels = {title for title, _ in study.panels(study.summary)}
    assert panels == {"gpipe", "interleaved, 2 parts", "interleaved, 4 parts"}


def test_schedules_of_other_micro_batches_have_panels_of_their_own(tmp_path: Path) -> None:
    """Five micro-batches cannot be interleaved, and a line through both would be of neither."""
    found = load(make_run(tmp_path / "run", [vig(), vig("pp2", 5), interleaved("pp2", 4, 2)]))
    (study,) = find_studies(found, summarise(found))
    assert study.variants == ("schedule", "parts")
    panels = {title: len(part) for title, part in study.panels(study.summary)}
    assert panels == {"gpipe": 4, "interleaved, 2 parts": 2}


def test_a_timeline_is_drawn_of_each_schedule(run: Run) -> None:
    chosen, left_out = timeline_cells(run)
    parts = run.cells.set_index("cell")["parts"]
    assert [int(parts[cell]) for cell in chosen] == [1, 2, 4]
    assert not left_out


def test_models_share_the_places_of_timelines_and_pipelines_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"name": "cifar10"}
    cells = [
        one(*layout, spans=True, **model)
        for model in ({}, {"data": other})
        for one, layout in (
            (vig, ("seq", 4)),
            (vig, ("pp2", 4)),
            (interleaved, ("pp2", 4, 2)),
            (interleaved, ("pp2", 4, 4)),
        )
    ]
    found = load(make_run(tmp_path / "run", cells))
    monkeypatch.setattr("analysis.figures.catalog.MAX_TIMELINES", 5)
    chosen, [(_, why)] = timeline_cells(found)
    drawn = found.cells.set_index("cell").loc[chosen]
    assert list(drawn["layout"]) == ["pp2"] * 5
    assert sorted(drawn["data"].value_counts()) == [2, 3]
    assert "report RUN --only timeline-CELL" in why


def test_joined_runs_keep_the_seconds_of_parts(tmp_path: Path) -> None:
    roots = [
        make_run(tmp_path / f"run{n}", [interleaved("pp2", 4, 2 * n, repeat=n), vig(repeat=n)])
        for n in (1, 2)
    ]
    found = summarise(load_runs(roots))
    assert row(found, "pp2", 4, parts=2)["efficiency"] == pytest.approx(1 / 1.02)
    assert row(found, "pp2", 4, parts=4)["efficiency"] == pytest.approx(1 / 1.02)
    assert row(found, "seq", 1)["cells_used"] == 2


def test_equal_parts_lose_what_the_schedule_loses() -> None:
    """pp2 in two parts, four micro-batches: 9 passes of a part where a stage has 8 of its own."""
    each = 0.25 / 2 / 4
    ideal = ideal_step_s("interleaved", [each] * 4, [each] * 4, 4, parts=2)
    assert ideal == pytest.approx(0.5 * 9 / 8)
    step = StepSeconds(step=ideal, passes=0.5, outside=ideal - 0.5)
    alone = StepSeconds(step=1.0, passes=1.0)
    lost = take_apart(step, ideal, alone, alone, ranks=2, stretch=2 / bound(1, 2, 4, 2))
    assert (lost.linear, lost.schedule) == pytest.approx((0.5, 0.5 / 8))
    assert lost.total == pytest.approx(ideal)
    others = (lost.microbatches, lost.company, lost.imbalance, lost.waits, lost.rest)
    assert others == pytest.approx((0.0,) * 5, abs=1e-12)


def test_the_waterfall_of_an_interleaved_run_adds_up(run: Run, summary: pd.DataFrame) -> None:
    for layout, parts in (("pp2", 2), ("pp2", 4), ("dp2-pp2", 2), ("pp4", 2)):
        one = row(summary, layout, 4, parts=parts)
        assert one[list(COLUMNS)].sum() == pytest.approx(one["mean_s"])
        at_bound = one["lost_linear_s"] + one["lost_schedule_s"]
        replicas, stages = int(one["replicas"]), int(one["stages"])
        best = one["lost_linear_s"] * replicas * stages
        assert at_bound == pytest.approx(best / bound(replicas, stages, 4, parts))
    (study,) = find_studies(run, summary)
    figure = waterfall(study)
    assert not isinstance(figure, str)
    titles = [" ".join(axes.get_title(loc="left").split()) for axes in figure.axes]
    assert any(title.startswith("pp2, 4 micro-batches, interleaved, 2 parts:") for title in titles)


def test_no_study_has_interleaved_pipelines(tmp_path: Path) -> None:
    several = {"schedule": "interleaved", "virtual_stages": 2}
    experiments = [
        Experiment.model_validate(
            {
                "model": Gat(layers=8),
                "data": PublishedGraph(name="pubmed"),
                "layout": "pp4",
                "microbatches": 4,
                "train_steps": 8,
                **changes,
            }
        )
        for changes in ({}, several)
    ]
    experiments += [vig(), vig("pp2", 10), interleaved("pp2", 10, 2)]
    found = load(make_run(tmp_path / "run", experiments))
    table = summarise(found)
    assert len(table[(table["layout"] == "pp2") & (table["phase"] == "train")]) == 2
    (graphs,) = GatRows(found, table)
    assert graphs.settings["schedule"] == "gpipe"
    study = corrected_study_frame(table, found)
    mine = study[study["ours"].notna() & (study["setting"] == "pp2, 10 micro-batches")]
    assert mine["phase"].tolist() == ["train", "test"]
    assert set(mine["bound"]) == {bound(1, 2, 10)}
    (of_pp2,) = [one for one in vig_tables(found, table) if ": pp2, 10 micro" in one.title]
    assert (of_pp2.frame["source"] != "published").sum() == 2
