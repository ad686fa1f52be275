"""Runs of sampled graphs: to draw a mini-batch is part of its step, an epoch's end is uneven."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.compare.two_runs import compare_runs
from analysis.foreign.exported_cells import exported_cells
from analysis.loading.run import Run, load
from analysis.report.report_tables import make_report_tables
from analysis.summary.configurations import cell_phase_frame
from analysis.summary.lost_time import COLUMNS
from analysis.summary.summary_table import summarise
from analysis.summary.varying_settings import varying_settings
from analysis.timeline.step_timeline import measured_timeline
from gnnhpc.kernels import sample
from gnnhpc.records.run_paths import RunPaths
from tests.tools.cells import manifest_of, run, sampled
from tests.tools.make_run import Machine, make_run
from tests.tools.result_files import rewrite_result

STEPS = {"train_steps": 11, "test_steps": 1, "test_every": None, "warmup_steps": 2}
ONCE = {"sampling": {"fanouts": [3, 3], "semantics": "once"}}
NO_THREAD = {"sampling": {"fanouts": [4, 3], "workers": 0}}
CELLS = [
    sampled(**STEPS),
    sampled(**STEPS, layout="dp2", batch_size=12),
    sampled(**STEPS, **NO_THREAD),
    sampled(**STEPS, **ONCE),
]
WHOLE: dict[str, Any] = {"batch_size": None, "spans": True}
real = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "sampled"
    for cell in manifest_of(root, *CELLS):
        assert set(run(root, cell).statuses) == {0}
    return root


@pytest.mark.slow
@pytest.mark.distributed
@real
def test_replicas_and_threads_vouch_for_one_another_and_other_semantics_do_not(ran: Path) -> None:
    found = load(ran)
    assert found.cells["valid"].all(), found.checks.to_dict("records")
    assert (found.siblings.families, len(found.siblings.compared)) == (1, 3)


@pytest.mark.distributed
@real
def test_a_step_is_what_it_waited_for_its_mini_batch_and_what_it_computed(ran: Path) -> None:
    ranks = load(ran).ranks
    drawn = ranks["phase"] == "train"
    assert (ranks["step_s"] == ranks["wall_s"] + ranks["data_s"].where(drawn, 0.0)).all()
    assert (ranks["data_s"][drawn] > 0).all()
    parts = ["forward_s", "backward_s", "optimizer_s", "allreduce_s", "wait_s", "data_s"]
    assert np.allclose(ranks.loc[drawn, parts].sum(axis=1), ranks.loc[drawn, "step_s"], atol=1e-7)


@pytest.mark.distributed
@real
def test_times_of_steps_are_those_in_the_summary(ran: Path) -> None:
    """Each number made again from the records of each rank."""
    found = load(ran)
    rows = summarise(found)
    rows = rows[rows["phase"] == "train"]
    assert len(rows) == len(CELLS)
    for cell, spec in zip(found.cells["cell"], CELLS, strict=True):
        assert spec.sampling is not None
        (row,) = rows[
            (rows["layout"] == str(spec.layout))
            & (rows["workers"] == spec.sampling.workers)
            & (rows["semantics"] == spec.sampling.semantics)
        ].to_dict("records")
        drawn = (row["sampler"], json.loads(row["fanouts"]))
        assert drawn == ("ours", list(spec.sampling.fanouts))
        steps = found.steps[(found.steps["cell"] == cell) & (found.steps["phase"] == "train")]
        kept = steps[steps["kept"]]
        assert set(steps["samples"]) == {24, 11}
        assert row["mean_s"] == pytest.approx(kept["step_s"].mean())
        assert row["samples_per_s"] == pytest.approx(kept["samples"].sum() / kept["step_s"].sum())
        ranks = found.ranks[(found.ranks["cell"] == cell) & (found.ranks["phase"] == "train")]
        ranks = ranks[ranks["step"].isin(kept["step"])]
        edges = ranks["sampled_edges"].sum() / kept["step_s"].sum()
        assert row["sampled_edges_per_s"] == pytest.approx(edges)
        assert row["allreduce_s"] == pytest.approx(ranks["allreduce_s"].mean())
        whole = kept.groupby("epoch").filter(lambda epoch: len(epoch) == 2)
        epochs = whole.groupby("epoch")["step_s"].sum()
        assert row["epoch_s"] == pytest.approx(epochs.mean())
        assert row["epoch_from"] == f"measured, {len(epochs)} whole epochs of 2 steps"
        peaks = found.ranks[found.ranks["cell"] == cell].groupby("rank")["peak_rss_mib"].max()
        assert row["peak_host_mib"] == pytest.approx(peaks.sum(), rel=0.05)
        assert row["peak_host_mib"] >= row["peak_rss_mib"]


def change(root: Path, name: str, value: str, step: int, cell: int = 1) -> None:
    """One field of one training step of the last rank of a cell, if not told that of two ranks."""
    rank = CELLS[cell].layout.world_size - 1
    path = RunPaths(root).cell(CELLS[cell].id).attempt(1).records(rank)
    lines = path.read_text().splitlines()
    (place,) = [n for n, line in enumerate(lines) if f'"train", "step": {step},' in line]
    lines[place] = re.sub(f'"{name}": [^,]*', f'"{name}": {value}', lines[place])
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.distributed
@real
@pytest.mark.parametrize(
    ("name", "value", "step", "says"),
    [
        ("samples", "12", 3, "found 12; allowed: 6: an epoch is 35 nodes, 24 a step"),
        ("samples", "11", 4, "found 11; allowed: 12"),
        ("epoch", "0", 2, "found 0; allowed: 1: an epoch is 2 steps"),
        ("sampled_edges", "null", 5, "found nan; allowed: a number from 0"),
        ("gather_s", "-1.0", 5, r"found -1\.0; allowed: seconds above 0"),
        ("gather_s", "0.0", 5, r"found 0\.0; allowed: seconds above 0"),
        ("sample_s", "0.0", 5, r"found 0\.0; allowed: seconds above 0"),
        ("sample_s", "null", 5, "found nan; allowed: seconds above 0"),
        ("data_s", "1e6", 5, "start_s: found .*, and data_s 1000000"),
    ],
)
def test_impossible_records_are_named(
    name: str, value: str, step: int, says: str, ran: Path, tmp_path: Path
) -> None:
    root = tmp_path / "damaged"
    shutil.copytree(ran, root)
    change(root, name, value, step)
    found = load(root)
    assert found.cells["counts"].tolist() == [True, False, True, True]
    checks = found.checks[found.checks["name"] == "damaged"]
    (check,) = checks.to_dict("records")
    assert re.search(rf"rank-0001\.jsonl: train step {step}: .*{says}", check["detail"])


@pytest.mark.distributed
@real
def test_a_step_waits_no_less_for_its_mini_batch_than_its_rank_made_it(
    ran: Path, tmp_path: Path
) -> None:
    root = tmp_path / "damaged"
    shutil.copytree(ran, root)
    change(root, "data_s", "1e-6", 5, cell=2)
    change(root, "sample_s", "0.5", 5, cell=2)
    found = load(root)
    assert found.cells["counts"].tolist() == [True, True, False, True]
    (detail,) = found.checks.loc[found.checks["name"] == "damaged", "detail"]
    assert re.search(r"train step 5: data_s: found 1e-06; allowed: 0\.5\d* or more", detail)


def change_facts(root: Path, cell: int, **facts: str | None) -> None:
    path = RunPaths(root).cell(CELLS[cell].id).attempt(1).result

    def told(result: dict[str, Any]) -> None:
        graph = result["graph"] | facts
        result["graph"] = {key: each for key, each in graph.items() if each is not None}

    rewrite_result(path, told)


@pytest.mark.distributed
@real
def test_where_a_graph_lay_is_told_and_older_results_do_not_say(ran: Path, tmp_path: Path) -> None:
    root = tmp_path / "changed"
    shutil.copytree(ran, root)
    change_facts(root, 0, features_on=None, graph_on=None)
    change_facts(root, 1, features_on="device")
    change_facts(root, 2, graph_on="nowhere")
    found = load(root)
    assert found.cells["counts"].tolist() == [True, False, False, True]
    details = found.checks.loc[found.checks["name"] == "damaged", "detail"].tolist()
    assert [re.search(r"graph\.\w+: found .*", detail)[0] for detail in details] == [
        "graph.features_on: found 'device'; allowed: host",
        "graph.graph_on: found 'nowhere'; allowed: host",
    ]


def made(root: Path, *changes: dict[str, Any], **machine: Any) -> Run:
    """Three repeats of each; 90 nodes to train on."""
    steps = {"train_steps": 21, "test_steps": 0, "test_every": None, "warmup_steps": 1}
    cells = [
        sampled(**{"batch_size": 16, "repeat": repeat, **steps, **each})
        for repeat in range(3)
        for each in changes
    ]
    return load(make_run(root, cells, machine=Machine(runs_differ=0.02, **machine)))


def row_of(summary: pd.DataFrame, **wanted: object) -> pd.Series:
    for key, value in wanted.items():
        summary = summary[summary[key] == value]
    assert len(summary) == 1
    return summary.iloc[0]


def test_the_uneven_end_of_an_epoch_is_no_outlier_no_drift_and_no_ideal(tmp_path: Path) -> None:
    """Of 90 nodes in mini-batches of 16 every sixth step has 10."""
    found = made(tmp_path / "run", {}, noise=0.0)
    steps = found.steps
    assert steps["uneven"].tolist() == (steps["samples"] == 10).tolist()
    assert steps.loc[steps["uneven"], "kept"].all()
    assert not steps["outlier"].any()
    assert found.phases["drift"].abs().max() == 0.0
    phases = cell_phase_frame(found)
    even = steps[steps["kept"] & ~steps["uneven"]].groupby("cell", observed=True)["step_s"]
    assert phases["median_step_s"].tolist() == even.median().tolist()


def test_parts_of_a_step_are_of_uneven_steps_too(tmp_path: Path) -> None:
    """The small end of an epoch is no imbalance, of one rank least of all."""
    found = made(tmp_path / "run", {}, {"layout": "dp2"}, noise=0.0)
    assert found.steps["uneven"].any()
    rows = summarise(found)
    for layout in ("seq", "dp2"):
        one = row_of(rows, layout=layout, phase="train")
        assert one["lost_imbalance_s"] == pytest.approx(0.0, abs=1e-12)
        assert one[list(COLUMNS)].sum() == pytest.approx(one["mean_s"])


def test_a_speedup_is_over_the_same_sampling_and_of_epochs(tmp_path: Path) -> None:
    """Replicas of a mini-batch each: as in the study, the seconds of an epoch tell the speedup."""
    once = {"sampling": {"fanouts": [3, 3], "semantics": "once"}}
    found = made(
        tmp_path / "run", {}, {"layout": "dp2"}, {"layout": "dp2", **once}, {"batch_size": 32}
    )
    rows = summarise(found)
    seq, dp2 = (row_of(rows, layout=n, semantics="resample", batch_size=16) for n in ("seq", "dp2"))
    assert dp2["speedup"] == pytest.approx(seq["epoch_s"] / dp2["epoch_s"], rel=0.05)
    assert 1.5 < dp2["speedup_low"] < dp2["speedup_high"] < 2.5
    alone = row_of(rows, semantics="once")
    assert np.isnan(alone["speedup"])
    assert "no valid seq m1 of the same settings" in alone["note"]


def test_fewer_steps_than_an_epoch_are_extrapolated_and_said_so(tmp_path: Path) -> None:
    (one,) = summarise(made(tmp_path / "few", {"train_steps": 4}))["epoch_from"]
    assert one == "extrapolated from 3 of 6 steps"
    few = summarise(load(tmp_path / "few")).iloc[0]
    whole = summarise(made(tmp_path / "whole", {})).iloc[0]
    assert whole["epoch_from"] == "measured, 2 whole epochs of 6 steps"
    assert few["epoch_s"] == pytest.approx(whole["epoch_s"], rel=0.1)
    assert few["epoch_s"] == pytest.approx(few["mean_s"] * 90 / 16, rel=0.01)


def test_steps_of_as_many_epochs_tell_no_rows_apart_and_others_do(tmp_path: Path) -> None:
    """More ranks have fewer steps an epoch: a number that follows from the layout."""
    follows = made(tmp_path / "follows", {}, {"layout": "dp2", "train_steps": 12})
    assert varying_settings(summarise(follows)) == []
    differs = made(tmp_path / "differs", {}, {"train_steps": 12})
    assert varying_settings(summarise(differs)) == ["train_steps"]


def test_whole_graphs_and_sampled_ones_of_one_model_are_rows_of_their_own(tmp_path: Path) -> None:
    whole: dict[str, Any] = {"sampling": None, "batch_size": None}
    found = made(tmp_path / "run", {}, {"layout": "dp2"}, whole, whole | {"layout": "dp2"})
    rows = summarise(found)
    assert len(rows) == 4
    of_whole = rows["sampler"].isna()
    assert rows.loc[of_whole, ["epoch_s", "epoch_from", "sample_s"]].isna().all(axis=None)
    assert rows.loc[~of_whole, ["epoch_s", "epoch_from", "sample_s"]].notna().all(axis=None)
    steps = found.steps.merge(found.cells[["cell", "sampler"]], on="cell")
    drawn = steps["sampler"].notna()
    assert (steps["step_s"][~drawn] == steps["wall_s"][~drawn]).all()
    assert (steps["step_s"][drawn] > steps["wall_s"][drawn]).all()
    speedups = rows.loc[rows["layout"] == "dp2", "speedup"]
    assert speedups.notna().all(), "each over one of its own kind"
    beside = make_report_tables(found, rows)
    (table,) = [one.frame for one in beside if one.name == "sampled"]
    assert len(table) == 2


def test_a_run_without_sampling_has_no_column_of_it(tmp_path: Path) -> None:
    rows = summarise(made(tmp_path / "run", {"sampling": None, "batch_size": None}))
    assert not {"sampler", "epoch_s", "compute_s", "sampling", "peak_host_mib"} & {*rows.columns}


def test_what_is_exported_and_compared_is_the_whole_step(tmp_path: Path) -> None:
    """Drawing alone that takes longer is a step that does."""
    a = made(tmp_path / "a", {}, noise=0.002)
    (cell, *_) = exported_cells(a)
    told = [one for one in cell.scalars if one.name == "train/step_s"]
    steps = a.steps[(a.steps["cell"] == cell.cell) & (a.steps["phase"] == "train")]
    assert [one.value for one in told] == steps["step_s"].tolist()
    slower = {"noise": 0.002, "drawing_s": lambda _: 0.008}
    made(tmp_path / "b", {}, **slower)
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    (row,) = found.slower_steps
    times = [run.steps.loc[run.steps["kept"], "step_s"].mean() for run in (a, load(tmp_path / "b"))]
    assert row.ratio.value == pytest.approx(times[1] / times[0], rel=0.02)


def test_a_timeline_says_how_long_its_step_waited_for_its_mini_batch(tmp_path: Path) -> None:
    found = made(tmp_path / "run", {"spans": True, "layout": "dp2"}, {"sampling": None, **WHOLE})
    cell = str(found.cells["cell"].iloc[0])
    shown = measured_timeline(found, cell)
    ranks = found.ranks[(found.ranks["cell"] == cell) & (found.ranks["step"] == shown.step)]
    assert shown.drawn_s == pytest.approx(ranks["data_s"].max())
    whole = str(found.cells["cell"].iloc[1])
    assert measured_timeline(found, whole).drawn_s is None
