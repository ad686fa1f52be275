"""summary.csv: its columns, values that are recomputed by hand, the bound, and the breakdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.load.run_data import RunData, accuracy_at_best_validation, load_run
from analysis.summary.settings_in_words import varying_settings, with_study
from analysis.summary.summary_table import CONTRACT_COLUMNS, summarize
from analysis.summary.time_breakdown import COLUMNS
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check
from tests.analysis.conftest import GOLDEN, experiments_of
from tests.tools.made_steps import Machine
from tests.tools.make_run import Story, make_run

EXACT: dict[str, Any] = {"rel": 1e-9}


def row_of(summary: pd.DataFrame, phase: str = "train", **settings: object) -> pd.Series[Any]:
    """The only row with these settings."""
    rows = summary[summary["phase"] == phase]
    for name, value in settings.items():
        rows = rows[rows[name] == value]
    assert len(rows) == 1
    return rows.iloc[0]


def recorded(run: RunData, phase: str = "train", **settings: object) -> list[pd.DataFrame]:
    """The steps of each run of a configuration without warm-up and profiled steps."""
    cells = run.cells
    for name, value in settings.items():
        cells = cells[cells[name] == value]
    steps = run.steps[(run.steps["phase"] == phase) & ~run.steps["warmup"] & ~run.steps["profiled"]]
    return [steps[steps["cell"] == cell] for cell in cells["cell"]]


@pytest.mark.parametrize("name", list(GOLDEN))
def test_the_first_columns_are_the_contract(summaries: dict[str, pd.DataFrame], name: str) -> None:
    summary = summaries[name]
    assert tuple(summary.columns[: len(CONTRACT_COLUMNS)]) == CONTRACT_COLUMNS
    assert set(summary["phase"]) == {"train", "test"}
    assert summary["valid"].all()


@pytest.mark.parametrize(
    ("name", "settings", "samples"),
    [
        ("images", {"layout": "seq", "microbatches": 5}, 100),
        ("images", {"layout": "pp4", "microbatches": 5}, 100),
        ("images", {"layout": "dp2-pp2", "microbatches": 5}, 200),
        ("chunks", {"layout": "dp2", "microbatches": 2}, 2708),
        ("sampled", {"layout": "dp2", "microbatches": 1}, 512),
    ],
)
def test_statistics_are_those_of_the_recorded_steps(
    runs: dict[str, RunData],
    summaries: dict[str, pd.DataFrame],
    name: str,
    settings: dict[str, Any],
    samples: int,
) -> None:
    row = row_of(summaries[name], **settings)
    found = recorded(runs[name], **settings)
    seconds = pd.concat(found)["step_s"]
    assert len(found) == 3
    assert row["n"] == len(seconds)
    mean = np.mean([one["step_s"].mean() for one in found])
    assert row["mean_s"] == pytest.approx(mean, **EXACT)
    assert row["median_s"] == pytest.approx(np.mean([o["step_s"].median() for o in found]), **EXACT)
    assert row["std_s"] == pytest.approx(seconds.std(), **EXACT)
    assert (row["min_s"], row["max_s"]) == (seconds.min(), seconds.max())
    assert row["samples_per_s"] == pytest.approx(samples / mean, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        ({"layout": "seq", "microbatches": 5}, 1.0),
        ({"layout": "pp2", "schedule": "gpipe"}, 2 * 5 / (5 + 1)),
        ({"layout": "pp2", "schedule": "1f1b"}, 2 * 5 / (5 + 1)),
        ({"layout": "pp4"}, 4 * 5 / (5 + 3)),
        ({"layout": "dp2-pp2"}, 2 * 2 * 5 / (5 + 1)),
        # V virtual stages shorten the bubble by V (Narayanan et al. 2021).
        ({"layout": "pp2", "schedule": "interleaved"}, 2 * 4 / (4 + 1 / 2)),
    ],
)
def test_the_bound_is_the_schedules(
    summaries: dict[str, pd.DataFrame], settings: dict[str, Any], bound: float
) -> None:
    assert row_of(summaries["images"], **settings)["bound"] == pytest.approx(bound, **EXACT)


def test_split_backward_has_a_higher_bound(summaries: dict[str, pd.DataFrame]) -> None:
    """With equal forward, input and weight seconds zero-bubble waits for two thirds as long."""
    row = row_of(summaries["images"], schedule="zero-bubble")
    assert 5 * 2 / 6 < row["bound"] < 2.0
    assert row["weights_share"] == pytest.approx(0.5)
    assert row_of(summaries["images"], phase="test", schedule="zero-bubble")["bound"] == 10 / 6


@pytest.mark.parametrize("settings", [{"layout": "pp4"}, {"layout": "dp2-pp2"}])
def test_a_speedup_is_a_ratio_of_samples_a_second_over_pairs_of_runs(
    images: RunData, summaries: dict[str, pd.DataFrame], settings: dict[str, Any]
) -> None:
    row = row_of(summaries["images"], **settings)
    mine = np.array([one["step_s"].mean() for one in recorded(images, **settings)])
    alone = recorded(images, layout="seq", microbatches=1)
    base = np.array([one["step_s"].mean() for one in alone])
    ratios = row["replicas"] * base / mine
    assert row["speedup"] == pytest.approx(np.exp(np.log(ratios).mean()), rel=1e-2)
    assert row["speedup_low"] < row["speedup"] < row["speedup_high"]
    assert row["speedup_low"] <= ratios.max() and row["speedup_high"] >= ratios.min()
    assert row["speedup_from"] == "3 pairs"
    assert row["of_bound"] == pytest.approx(row["speedup"] / row["bound"], rel=1e-6)


@pytest.mark.parametrize("settings", [{"layout": "pp2", "schedule": "gpipe"}, {"layout": "pp4"}])
def test_efficiency_is_the_ideal_step_over_the_measured_one(
    images: RunData, summaries: dict[str, pd.DataFrame], settings: dict[str, Any]
) -> None:
    """The made steps are 2 % longer than the ideal ones, and stages wait for a part of each."""
    row = row_of(summaries["images"], **settings)
    assert row["efficiency"] == pytest.approx(1 / 1.02, rel=1e-3)
    assert row["ideal_step_s"] == pytest.approx(row["mean_s"] / 1.02, rel=1e-3)
    stages, count = int(row["stages"]), int(row["microbatches"])
    assert row["balanced_bubble"] == pytest.approx((stages - 1) / (count + stages - 1))
    assert row["balanced_bubble"] <= row["bubble"] < row["balanced_bubble"] + 0.2


@pytest.mark.parametrize("name", list(GOLDEN))
def test_the_parts_of_a_step_add_up_to_it(summaries: dict[str, pd.DataFrame], name: str) -> None:
    rows = summaries[name].query("phase == 'train'")
    rows = rows[rows["lost_linear_s"].notna()]
    assert len(rows) >= 2
    assert np.allclose(rows[list(COLUMNS)].fillna(0.0).sum(axis=1), rows["mean_s"], rtol=1e-9)
    assert (rows.query("layout != 'seq'")["lost_linear_s"] < rows["mean_s"].max()).all()
    # A sequential cell is its own best one: it loses nothing.
    best = rows[(rows["layout"] == "seq") & (rows["microbatches"] == 1)]
    assert np.allclose(best["lost_linear_s"].min(), best["mean_s"].min())


def test_invalid_cells_are_in_no_average(tmp_path: Path) -> None:
    experiments = experiments_of("chunks", repeats=2)
    slow = experiments[0]
    machine = Machine(pace=lambda one: 50.0 if one.id == slow.id else 1.0)
    stories = {slow.id: [Story(audit=(Check("engine-parity", "invalid", "outputs differ"),))]}
    root = make_run(tmp_path / "run", experiments, stories=stories, machine=machine)
    summary = summarize(load_run(root)).table
    row = row_of(summary, layout="seq", microbatches=1, implementation="fused")
    other = row_of(summary, layout="seq", microbatches=1, implementation="pyg")
    assert (row["cells"], row["cells_used"]) == (2, 1)
    assert row["mean_s"] == pytest.approx(other["mean_s"], rel=0.1)


@pytest.mark.parametrize("verdict", ["suspect", "inconclusive"])
def test_flagged_cells_count_and_say_so(tmp_path: Path, verdict: str) -> None:
    experiments = experiments_of("chunks", repeats=1)
    check = Check("noisy", verdict, "because")  # type: ignore[arg-type]
    stories = {experiments[0].id: [Story(audit=(check,))]}
    summary = summarize(load_run(make_run(tmp_path / "run", experiments, stories=stories))).table
    row = row_of(summary, layout="seq", microbatches=1, implementation="fused")
    assert row["valid"] and row["cells_used"] == 1
    assert row["flags"] == f"{'noisy' if verdict == 'suspect' else verdict} 1 of 1"


@pytest.mark.parametrize(
    ("pace", "flag", "valid"),
    [(0.5, "above-bound", True), (0.995, "", True)],
)
def test_a_speedup_above_the_bound_is_flagged_with_its_reason(
    tmp_path: Path, pace: float, flag: str, valid: bool
) -> None:
    """Stages that compute faster than the sequential run explain a speedup above the bound."""
    experiments = experiments_of("images")
    machine = Machine(pace=lambda one: pace if str(one.layout) == "pp4" else 1.0)
    summary = summarize(load_run(make_run(tmp_path / "run", experiments, machine=machine))).table
    row = row_of(summary, layout="pp4")
    assert row["flags"] == flag
    assert row["valid"] == valid
    assert bool(row["note"]) == bool(flag)


def test_cells_of_other_batch_sizes_have_no_speedup(summaries: dict[str, pd.DataFrame]) -> None:
    row = row_of(summaries["images"], schedule="interleaved")
    assert pd.isna(row["speedup"])
    assert row["flags"] == "not-comparable"
    assert "batch size 96" in row["note"]


@pytest.mark.parametrize(("baseline", "layout"), [("seq:5", "seq"), ("pp2:5", "pp2")])
def test_another_baseline_can_be_chosen(images: RunData, baseline: str, layout: str) -> None:
    rows = summarize(images, baseline).table.query("phase == 'train' and speedup == 1.0")
    assert (rows["layout"] == layout).all() and (rows["microbatches"] == 5).all()


def test_a_sampled_epoch_is_its_steps(summaries: dict[str, pd.DataFrame]) -> None:
    row = row_of(summaries["sampled"], layout="seq", implementation="fused")
    assert row["epoch_s"] > row["mean_s"]
    assert 0 < row["data_s"] < row["mean_s"]


def test_test_rows_without_counted_steps_say_so_and_what_to_set(tmp_path: Path) -> None:
    changes = GOLDEN["chunks"][0] | {"test_steps": 2, "warmup_steps": 2}
    run = load_run(make_run(tmp_path / "run", [Experiment.model_validate(changes)]))
    row = row_of(summarize(run).table, phase="test")
    assert (row["valid"], row["flags"]) == (False, "only-warm-up")
    assert "no test steps beyond 2 of warm-up: raise test_steps in the sweep" in row["note"]


def test_a_graph_in_one_chunk_differs_from_chunks_by_no_setting(tmp_path: Path) -> None:
    """A sweep's sequential cell has the default mode of chunks, and its others keep all edges."""
    changes: list[dict[str, Any]] = [
        {"chunks": "contiguous"},
        {"layout": "pp2", "microbatches": 2},
        {"layout": "dp2"},
    ]
    experiments = [Experiment.model_validate(GOLDEN["chunks"][0] | one) for one in changes]
    table = summarize(load_run(make_run(tmp_path / "run", experiments))).table
    assert set(table["chunks"]) == {"contiguous", "halo"}
    assert varying_settings(table) == []
    assert set(with_study(table)["study"]) == {""}


def test_the_best_validation_step_is_the_first_with_the_highest_accuracy() -> None:
    cells = pd.DataFrame({"cell": pd.Categorical(["a", "b"]), "test_steps": [2, 1]})
    steps = pd.DataFrame(
        [
            *(("a", 0, 0.5, 0.1), ("a", 1, 0.6, 0.1), ("a", 2, 0.9, 0.3), ("a", 3, 0.7, 0.3)),
            *(("a", 4, 0.2, 0.2), ("a", 5, 0.2, 0.2), ("b", 0, 0.4, float("nan"))),
        ],
        columns=["cell", "step", "accuracy", "val_accuracy"],
    ).assign(phase="test")
    steps["cell"] = pd.Categorical(steps["cell"], cells["cell"])
    found = accuracy_at_best_validation(steps, cells)
    assert found[0] == pytest.approx(0.8) and pd.isna(found[1])
