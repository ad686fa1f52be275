"""summary.csv: its columns, values that are recomputed by hand, the bound, and the breakdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.load.run_data import RunData, accuracy_at_best_validation, load_run
from analysis.summary.settings_in_words import varying_settings, with_study
from analysis.summary.summary_table import summarize
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
    assert row["median_low"] < row["median_s"] < row["median_high"]
    assert row["std_s"] == pytest.approx(seconds.std(), **EXACT)
    assert (row["min_s"], row["max_s"]) == (seconds.min(), seconds.max())
    assert row["samples_per_s"] == pytest.approx(samples / mean, rel=1e-6)


def test_the_bound_is_the_schedules(summaries: dict[str, pd.DataFrame]) -> None:
    bounds: dict[float, dict[str, Any]] = {
        1.0: {"layout": "seq", "microbatches": 5},
        2 * 5 / (5 + 1): {"layout": "pp2", "schedule": "1f1b"},
        4 * 5 / (5 + 3): {"layout": "pp4"},
        2 * 2 * 5 / (5 + 1): {"layout": "dp2-pp2"},
        # V virtual stages shorten the bubble by V (Narayanan et al. 2021).
        2 * 4 / (4 + 1 / 2): {"schedule": "interleaved"},
    }
    for bound, settings in bounds.items():
        assert row_of(summaries["images"], **settings)["bound"] == pytest.approx(bound, **EXACT)
    # With equal forward, input and weight seconds zero-bubble waits for two thirds as long.
    row = row_of(summaries["images"], schedule="zero-bubble")
    assert 5 * 2 / 6 < row["bound"] < 2.0
    assert row["weights_share"] == pytest.approx(0.5)
    assert row_of(summaries["images"], phase="test", schedule="zero-bubble")["bound"] == 10 / 6


def test_a_speedup_is_a_ratio_of_samples_a_second_over_pairs_of_runs(
    images: RunData, summaries: dict[str, pd.DataFrame]
) -> None:
    row = row_of(summaries["images"], layout="dp2-pp2")
    mine = np.array([one["step_s"].mean() for one in recorded(images, layout="dp2-pp2")])
    alone = recorded(images, layout="seq", microbatches=1)
    base = np.array([one["step_s"].mean() for one in alone])
    ratios = row["replicas"] * base / mine
    assert row["speedup"] == pytest.approx(np.exp(np.log(ratios).mean()), rel=1e-2)
    assert row["speedup_low"] < row["speedup"] < row["speedup_high"]
    assert row["speedup_low"] <= ratios.max() and row["speedup_high"] >= ratios.min()
    assert row["speedup_median_low"] < row["speedup_median"] < row["speedup_median_high"]
    assert row["speedup_from"] == "3 pairs"
    assert row["of_bound"] == pytest.approx(row["speedup"] / row["bound"], rel=1e-6)


def test_efficiency_is_the_ideal_step_over_the_measured_one(
    summaries: dict[str, pd.DataFrame],
) -> None:
    """The made steps are 2 % longer than the ideal ones, and stages wait for a part of each."""
    row = row_of(summaries["images"], layout="pp4")
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


def test_invalid_cells_are_in_no_average_and_flagged_ones_are(tmp_path: Path) -> None:
    slow, noisy, unsure = experiments = [
        Experiment.model_validate(GOLDEN["chunks"][0] | {"repeat": repeat}) for repeat in range(3)
    ]
    machine = Machine(pace=lambda one: 50.0 if one.id == slow.id else 1.0)
    checks = {
        slow.id: Check("engine-parity", "invalid", "outputs differ"),
        noisy.id: Check("noisy", "suspect", "because"),
        unsure.id: Check("engine-parity", "inconclusive", "because"),
    }
    stories = {cell: [Story(audit=(check,))] for cell, check in checks.items()}
    root = make_run(tmp_path / "run", experiments, stories=stories, machine=machine)
    row = row_of(summarize(load_run(root)).table)
    assert (row["cells"], row["cells_used"], row["valid"]) == (3, 2, True)
    assert row["max_s"] < 2.0 * row["min_s"]
    assert row["flags"] == "inconclusive 1 of 2;noisy 1 of 2"
    assert row["note"].startswith("1 of 3 cells left out: 1 invalid (engine-parity)")


@pytest.mark.parametrize(("pace", "flag"), [(0.5, "above-bound"), (0.995, "")])
def test_a_speedup_above_the_bound_is_flagged_with_its_reason(
    tmp_path: Path, pace: float, flag: str
) -> None:
    """Stages that compute faster than the sequential run explain a speedup above the bound."""
    machine = Machine(pace=lambda one: pace if str(one.layout) == "pp4" else 1.0)
    root = make_run(tmp_path / "run", experiments_of("images"), machine=machine)
    row = row_of(summarize(load_run(root)).table, layout="pp4")
    assert (row["flags"], row["valid"], bool(row["note"])) == (flag, True, bool(flag))


def test_cells_of_other_batch_sizes_have_no_speedup(summaries: dict[str, pd.DataFrame]) -> None:
    row = row_of(summaries["images"], schedule="interleaved")
    assert pd.isna(row["speedup"])
    assert row["flags"] == "not-comparable"
    assert "batch size 96" in row["note"]


def test_another_baseline_can_be_chosen(images: RunData) -> None:
    rows = summarize(images, "pp2:5").table.query("phase == 'train' and speedup == 1.0")
    assert (rows["layout"] == "pp2").all() and (rows["microbatches"] == 5).all()


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
