"""summary.csv: what a row counts, what it compares with, and what it says of its bound."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest

from analysis.loading.run import load
from analysis.report.headline import headline_table
from analysis.stats.intervals import Interval
from analysis.summary.above_bound import explain_excess
from analysis.summary.lost_time import COLUMNS
from analysis.summary.summary_table import CONTRACT_COLUMNS, summarise
from gnnhpc.core.bounds import bound
from gnnhpc.core.errors import InputError
from gnnhpc.data.published import PublishedGraph
from gnnhpc.data.settings import SyntheticCifar10
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.gat import Gat
from gnnhpc.models.vig.model import Vig
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Check
from tests.tools.make_run import Machine, Story, make_run, small_sweep
from tests.tools.result_files import rewrite_result


def vig(layout: str = "seq", microbatches: int = 1, **changes: object) -> Experiment:
    fields = {
        "model": Vig(),
        "data": SyntheticCifar10(image_size=8),
        "batch_size": 20,
        "train_steps": 10,
        "test_steps": 3,
    }
    chosen = {"layout": layout, "microbatches": microbatches}
    return Experiment.model_validate(fields | chosen | changes)


def summary_of(
    root: Path,
    experiments: Sequence[Experiment],
    stories: Mapping[str, Sequence[Story]] | None = None,
    machine: Machine | None = None,
    baseline: str = "seq",
) -> pd.DataFrame:
    run = load(make_run(root, experiments, stories=stories, machine=machine))
    return summarise(run, baseline)


def row(
    summary: pd.DataFrame, layout: str, microbatches: int, phase: str = "train", **also: object
) -> pd.Series:
    wanted = {"layout": layout, "microbatches": microbatches, "phase": phase} | also
    found = summary
    for key, value in wanted.items():
        found = found[found[key] == value]
    assert len(found) == 1
    return found.iloc[0]


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return summary_of(tmp_path_factory.mktemp("run") / "r", small_sweep(repeats=2))


def test_the_contracts_columns_come_first(summary: pd.DataFrame) -> None:
    assert tuple(summary.columns[: len(CONTRACT_COLUMNS)]) == CONTRACT_COLUMNS
    keys = ["model", "data", "layout", "microbatches", "phase"]
    assert not summary.duplicated(keys).any()


def test_rows_go_from_few_ranks_to_many(summary: pd.DataFrame) -> None:
    vigs = summary[summary["model"] == "vig"]
    assert list(dict.fromkeys(vigs["layout"])) == ["seq", "pp2", "pp4", "dp2-pp2"]
    assert list(summary["phase"][:2]) == ["train", "test"]


def test_times_are_of_steps_after_warmup(summary: pd.DataFrame) -> None:
    one = row(summary, "pp2", 5, model="vig")
    assert one["n"] == 2 * 11
    assert one["warmup_dropped"] == 2
    assert one["cells_used"] == one["cells"] == 2
    assert one["mean_low"] <= one["mean_s"] <= one["mean_high"]
    assert one["min_s"] <= one["median_s"] <= one["max_s"]


def test_speedups_are_of_samples_a_second(summary: pd.DataFrame) -> None:
    seq = row(summary, "seq", 1, model="vig")
    both = row(summary, "dp2-pp2", 5, model="vig")
    assert seq["speedup"] == 1.0
    assert both["samples_per_s"] == pytest.approx(200 / both["mean_s"])
    assert both["speedup"] == pytest.approx(both["samples_per_s"] / seq["samples_per_s"])
    assert both["speedup_low"] < both["speedup"] < both["speedup_high"]
    assert both["bound"] == pytest.approx(bound(2, 2, 5))
    assert both["effect"].startswith("faster")


def test_the_sequential_run_of_the_same_microbatches_stands_beside(summary: pd.DataFrame) -> None:
    pipelined, seq = row(summary, "pp2", 5, model="vig"), row(summary, "seq", 5, model="vig")
    assert pipelined["speedup_same_m"] == pytest.approx(seq["mean_s"] / pipelined["mean_s"])
    assert math.isnan(row(summary, "pp2", 2, model="gat")["speedup_same_m"])


def test_efficiency_is_what_the_machine_added(summary: pd.DataFrame) -> None:
    """The made-up machine adds 2 % to the ideal step of every layout and phase."""
    assert summary["efficiency"].between(0.97, 0.99).all()
    assert (summary["ideal_step_s"] < summary["mean_s"]).all()


def test_bubbles_are_close_to_those_of_the_schedule(summary: pd.DataFrame) -> None:
    assert row(summary, "pp2", 5, model="vig")["bubble"] == pytest.approx(1 / 6, abs=0.02)
    assert row(summary, "pp4", 10, model="vig")["bubble"] == pytest.approx(3 / 13, abs=0.02)


def test_one_process_waits_for_nobody(summary: pd.DataFrame) -> None:
    """Whatever lies between its spans; of several ranks this is with their waiting."""
    alone = summary[summary["layout"] == "seq"]
    assert len(alone) and (alone["bubble"] == 0.0).all()
    assert (summary.loc[summary["layout"] != "seq", "bubble"] > 0.0).all()
    for microbatches in (1, 5, 10):
        one = row(summary, "seq", microbatches, model="vig")
        assert one["lost_waits_s"] == 0.0
        parts = one[list(COLUMNS)].sum()
        assert parts == pytest.approx(one["mean_s"])
    first = row(summary, "seq", 1, model="vig")
    assert first["lost_rest_s"] == pytest.approx(0.0, abs=1e-12)


def test_what_was_learned_and_kept_is_averaged(summary: pd.DataFrame) -> None:
    gat = row(summary, "pp2", 2, model="gat")
    assert gat["test_accuracy"] == pytest.approx(0.6)
    assert gat["edges_kept"] == 1.0


def test_what_was_learned_has_an_interval_over_seeds_and_none_over_repeats(tmp_path: Path) -> None:
    """The made-up accuracy is 0.6 less 0.01 a seed; Student's t of one degree is 12.706."""
    cells = [vig(seed=seed, repeat=repeat) for seed in (0, 1) for repeat in (0, 1)]
    found = row(summary_of(tmp_path / "two", cells), "seq", 1)
    assert found["test_accuracy"] == pytest.approx(0.595)
    assert found["test_accuracy_high"] - 0.595 == pytest.approx(12.706 * 0.005, rel=1e-4)
    assert found["test_loss_low"] == found["test_loss_high"] == pytest.approx(1.2)
    one_seed = row(summary_of(tmp_path / "one", [vig(repeat=r) for r in range(3)]), "seq", 1)
    assert one_seed["test_accuracy"] == 0.6 and math.isnan(one_seed["test_accuracy_low"])


def test_invalid_and_failed_cells_are_kept_out(tmp_path: Path) -> None:
    cells = [vig(repeat=r) for r in range(3)]
    stories = {
        cells[0].id: [Story(audit=(Check("labels", "invalid", "planted"),))],
        cells[1].id: [Story(status="failed", stop_at=5)],
    }
    summary = summary_of(tmp_path / "run", cells, stories)
    one = row(summary, "seq", 1)
    assert (one["cells"], one["cells_used"], one["n"]) == (3, 1, 9)
    assert one["flags"] == "", "flags are of cells that are used"
    assert one["valid"]
    assert "2 of 3 cells left out: 1 invalid (labels), 1 failed" in one["note"]


def test_a_row_of_several_measured_cuts_says_which(tmp_path: Path) -> None:
    cells = [vig("pp2", 2, balance="profile", repeat=r) for r in range(3)]
    root = make_run(tmp_path / "run", cells)
    path = RunPaths(root).cell(cells[1].id).attempt(1).result
    whole = sum(json.loads(path.read_text())["layout"]["balance"])
    cut = [1, whole - 1]
    rewrite_result(path, lambda result: result["layout"].update(balance=cut))
    notes = summarise(load(root))["note"]
    assert notes.str.contains(f"as each run measured: .* \\(2\\), \\[1, {cut[1]}\\] \\(1\\)").all()
    alike = summarise(load(make_run(tmp_path / "alike", cells)))["note"]
    assert not alike.str.contains("layers a stage").any()


def test_a_row_without_a_valid_cell_has_no_times(tmp_path: Path) -> None:
    cell = vig("pp2", 2)
    invalid = {cell.id: [Story(audit=(Check("gradients", "invalid", "planted"),))]}
    summary = summary_of(tmp_path / "run", [vig(), cell], invalid)
    one = row(summary, "pp2", 2)
    assert (one["n"], one["valid"], one["flags"]) == (0, False, "")
    assert "1 of 1 cells left out: 1 invalid (gradients)" in one["note"]
    assert math.isnan(one["mean_s"])
    assert math.isnan(one["speedup"])


def test_suspect_cells_count_and_carry_their_flag(tmp_path: Path) -> None:
    cell = vig()
    noisy = {cell.id: [Story(audit=(Check("noise", "suspect", "planted"),))]}
    one = row(summary_of(tmp_path / "run", [cell], noisy), "seq", 1)
    assert (one["valid"], one["flags"], one["n"]) == (True, "noise 1 of 1", 9)


def test_without_a_baseline_there_is_no_speedup(tmp_path: Path) -> None:
    one = row(summary_of(tmp_path / "run", [vig("pp2", 2)]), "pp2", 2)
    assert math.isnan(one["speedup"])
    assert "no valid seq m1" in one["note"]
    assert one["valid"]


def test_another_baseline_can_be_asked_for(tmp_path: Path) -> None:
    cells = [vig(), vig("pp2", 2), vig("pp4", 2)]
    summary = summary_of(tmp_path / "run", cells, baseline="pp2:2")
    assert row(summary, "pp2", 2)["speedup"] == 1.0
    four = row(summary, "pp4", 2)
    assert four["bound"] == pytest.approx(bound(1, 4, 2) / bound(1, 2, 2))
    assert four["baseline"] == "pp2 m2"


@pytest.mark.parametrize("text", ["pp3x", "seq:0", "pp2:many", ""])
def test_a_baseline_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="--baseline"):
        summary_of(tmp_path / "run", [vig()], baseline=text)


def test_the_baseline_has_the_same_implementation_and_the_nearest_settings(tmp_path: Path) -> None:
    slow = Vig(implementation="pyg")
    cells = [
        vig(model=slow),
        vig(batch_size=10),
        vig(),
        vig("pp2", 2, schedule="1f1b"),
    ]
    summary = summary_of(tmp_path / "run", cells)
    one, near = (
        row(summary, "pp2", 2),
        row(summary, "seq", 1, batch_size=20, implementation="fused"),
    )
    assert one["speedup"] == pytest.approx(one["samples_per_s"] / near["samples_per_s"])
    only_reference = summary_of(tmp_path / "other", [vig(model=slow), vig("pp2", 2)])
    assert math.isnan(row(only_reference, "pp2", 2)["speedup"])


def test_settings_that_vary_make_rows_and_columns(tmp_path: Path) -> None:
    summary = summary_of(tmp_path / "run", [vig(), vig(optimizer={"lr": 0.01})])
    train = summary[summary["phase"] == "train"]
    assert sorted(train["optimizer_lr"]) == [0.001, 0.01]
    assert "optimizer_name" not in summary


def test_graphs_count_nodes_as_samples(tmp_path: Path) -> None:
    gat = Experiment.model_validate({"model": Gat(), "data": PublishedGraph(name="cora")})
    one = row(summary_of(tmp_path / "run", [gat]), "seq", 1)
    assert one["samples_per_s"] == pytest.approx(2708 / one["mean_s"])


def three(*experiments: Experiment) -> list[Experiment]:
    return [one.model_copy(update={"repeat": repeat}) for repeat in range(3) for one in experiments]


def test_a_dearer_sequential_run_explains_a_speedup_above_the_bound(tmp_path: Path) -> None:
    machine = Machine(sequential=1.2)
    summary = summary_of(tmp_path / "run", three(vig(), vig("pp2", 5)), machine=machine)
    one = row(summary, "pp2", 5)
    assert one["speedup_low"] > one["bound"]
    assert one["flags"] == "above-bound"
    assert one["valid"]
    assert "one process pays 1.2" in one["note"]


def hurried(root: Path, experiments: Sequence[Experiment], layout: str) -> Path:
    """A run whose steps of a layout are shorter than their own layers."""
    make_run(root, experiments)
    for path in root.glob(f"cells/*{layout}*/attempt-1/rank-*.jsonl"):
        lines = path.read_text().splitlines()
        path.write_text("\n".join(_hurry(line) for line in lines) + "\n")
    return root


def test_a_speedup_that_nothing_explains_is_not_valid(tmp_path: Path) -> None:
    """Steps shorter than their own layers: a clock that does not cover the step."""
    root = hurried(tmp_path / "cheat", three(vig(), vig("pp2", 5)), "pp2")
    one = row(summarise(load(root)), "pp2", 5)
    assert one["flags"] == "above-bound-unexplained;above-ideal"
    assert not one["valid"]
    assert "do not explain" in one["note"]
    assert one["efficiency_low"] > 1.0


def test_nothing_is_above_a_bound_without_an_interval(tmp_path: Path) -> None:
    root = hurried(tmp_path / "one", [vig(), vig("pp2", 5)], "pp2")
    one = row(summarise(load(root)), "pp2", 5)
    assert one["speedup"] > one["bound"] and one["efficiency"] > 1.0
    assert (one["flags"], one["valid"]) == ("", True)


def test_one_process_has_no_bound_to_be_above(tmp_path: Path) -> None:
    """Five micro-batches that take less than one: no stage and no replica, so no bound."""
    root = hurried(tmp_path / "run", three(vig(), vig(microbatches=5)), "seq-m5")
    one = row(summarise(load(root)), "seq", 5)
    assert one["speedup_low"] > one["bound"] == 1.0
    assert "above-bound" not in one["flags"]


@pytest.mark.parametrize("alone", ["row", "baseline"])
def test_one_run_says_nothing_of_a_difference(tmp_path: Path, alone: str) -> None:
    seq, pp2 = three(vig()), three(vig("pp2", 5))
    cells = [*seq, pp2[0]] if alone == "row" else [seq[0], *pp2]
    summary = summary_of(tmp_path / "run", cells)
    one = row(summary, "pp2", 5)
    assert math.isnan(one["speedup_low"]) and math.isnan(one["speedup_high"])
    assert "one run says nothing about how runs differ" in one["effect"]
    assert "one run says nothing about how runs differ" in one["note"]
    assert math.isnan(one["mean_low"]) == (alone == "row")
    table = headline_table(summary[summary["phase"] == "train"])
    remarks = {cells[0].text: cells[-1].text for cells in table.rows}
    said = {"row": ("", "one run"), "baseline": ("one run", "baseline of one run")}[alone]
    assert (remarks["seq"], remarks["pp2"]) == said
    base = row(summary, "seq", 1)
    assert (base["speedup"], math.isnan(base["speedup_low"])) == (1.0, alone == "baseline")


def test_a_repeat_is_a_pair(tmp_path: Path) -> None:
    """An hour in which everything takes twice as long moves no speedup."""
    cells = three(vig(), vig("pp2", 5))
    root = make_run(tmp_path / "run", cells)
    for cell in cells[2:4]:
        for path in root.glob(f"cells/{cell.id}/attempt-1/rank-*.jsonl"):
            lines = path.read_text().splitlines()
            path.write_text("\n".join(_hurry(line, 2.0) for line in lines) + "\n")
    one = row(summarise(load(root)), "pp2", 5)
    assert one["speedup_from"] == "3 pairs"
    assert one["mean_high"] / one["mean_low"] > 2.0
    assert one["speedup_high"] / one["speedup_low"] < 1.1


def test_without_enough_pairs_runs_are_compared_as_they_are(tmp_path: Path) -> None:
    cells = [*three(vig(), vig("pp2", 5)), vig(repeat=3), vig("pp2", 5, repeat=4)]
    one = row(summary_of(tmp_path / "most", cells), "pp2", 5)
    assert one["speedup_from"] == "3 pairs", "only complete ones"
    root = make_run(tmp_path / "elsewhere", cells[:6])
    for path in root.glob(f"cells/{cells[3].id}/attempt-1/rank-*.jsonl"):
        path.write_text(path.read_text().replace('"host": "node', '"host": "other'))
    one = row(summarise(load(root)), "pp2", 5)
    assert one["speedup_from"] == "3 and 3 runs", "a repeat of another machine is no pair"


def test_flags_are_counted_and_of_their_own_phase(tmp_path: Path) -> None:
    cells = [vig(repeat=r) for r in range(5)]
    drift, noisy = Check("drift", "suspect", "planted"), Check("noisy", "suspect", "planted")
    stories = {
        cells[0].id: [Story(audit=(drift, noisy))],
        cells[1].id: [Story(audit=(drift,))],
        cells[2].id: [Story(audit=(noisy, Check("labels", "invalid", "planted")))],
    }
    summary = summary_of(tmp_path / "run", cells, stories)
    assert row(summary, "seq", 1)["flags"] == "drift 2 of 4;noisy 1 of 4"
    assert row(summary, "seq", 1, "test")["flags"] == "noisy 1 of 4"


def _hurry(line: str, factor: float = 0.7) -> str:
    record = json.loads(line)
    if record["kind"] == "step":
        # An older record's, as newer ones tell what is left of the step.
        record |= {name: factor * record[name] for name in ("start_s", "wall_s")}
        record |= {"waiting_cpu_s": None, "wait_s": 0.0}
    return json.dumps(record)


def test_a_stage_without_backward_is_named() -> None:
    verdict = explain_excess(
        Interval(1.97, 1.96, 1.98), 5 / 3, {"block0": 1.0}, {"block0": 0.9}, [0]
    )
    assert not verdict.explained
    assert "stages [0] ran no backward" in verdict.note


def test_without_seconds_a_layer_nothing_is_explained() -> None:
    verdict = explain_excess(Interval(1.97, 1.96, 1.98), 5 / 3, {}, {}, [])
    assert not verdict.explained
    assert "no seconds a layer were recorded" in verdict.note
