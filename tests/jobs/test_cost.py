"""Core-hours: at most, predicted, and spent, as sacct or the results say; missing is not zero."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.load.run_data import load_run
from analysis.report.what_it_cost import cost_text
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.cost import AccountedCost, attempt_core_s, read_accounted, write_accounted
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Result
from jobs.actions.submit import Submission
from jobs.cli import main
from jobs.cluster.arrays import group_by_array, resources_for
from jobs.cluster.core_hours import MostCoreHours, most_core_hours
from jobs.cluster.launch import Launch
from jobs.cluster.site import Site
from jobs.cluster.slurm_accounts import AccountedTask, ask_sacct, cpu_seconds, parse_accounts
from jobs.folder.run_folder import create_run_folder
from jobs.folder.submission_records import record_submission
from jobs.printing.cost_text import cost_lines, most_line, predicted_line
from jobs.printing.plan_text import print_submission
from jobs.spec.planning import plan
from jobs.state.run_cost import PredictedCost, predict_cells, run_cost

GRID = {"models": "gat", "data": "synthetic-citation", "layouts": ["seq", "pp2"], "repeats": 2}
WHOLE = Launch("here", Site(exclusive=True), live=True)


def rows(*lines: str) -> str:
    """As sacct writes them, with | for its separator."""
    return "\n".join(lines).replace("|", "\x1f") + "\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Two cells of gat-seq, jobs 17_0 and 17_1, and two of gat-pp2; nothing answers."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    one = plan({"name": "run", "grids": [GRID]})
    paths = create_run_folder(one, tmp_path / "run", WHOLE)
    record_submission(paths, "slurm", "gat-seq", [0, 1], "17", WHOLE)
    return paths


def sacct(run: RunPaths, text: str) -> None:
    """A sacct that answers this, and keeps what it was asked."""
    shim = run.root.parent / "bin/sacct"
    shim.parent.mkdir(exist_ok=True)
    (shim.parent / "answer").write_text(text)
    script = (
        f'#!/bin/sh\necho "$@" >>{shim.parent}/asked\nwhile read -r line; do echo "$line"; done '
    )
    shim.write_text(f"{script} <{shim.parent}/answer\n")
    shim.chmod(0o755)


def finish(run: RunPaths, array: str, index: int, seconds: float, **changes: Any) -> None:
    """A result of a cell whose ranks, of two threads each, were there for so long."""
    cell = next(
        one for one in read_manifest(run.manifest) if (one.array, one.index) == (array, index)
    )
    attempt = run.cell(cell.id).claim_attempt()
    minutes, rest = divmod(seconds, 60)
    values: dict[str, Any] = {
        "cell": cell.id, "attempt": attempt.number, "status": "done", "experiment": {},
        "layout": {"world_size": cell.experiment.layout.world_size},
        "provenance": {"threads": 2}, "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": f"2026-01-01T00:{int(minutes):02}:{rest:06.3f}+00:00", "train_steps": 10,
        "test_steps": 1, "samples_per_step": 5,
    }  # fmt: skip
    Result(**values | changes).write(attempt.result)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("00:01.500", 1.5), ("02:03.004", 123.004), ("01:02:03", 3723.0), ("2-01:02:03", 176523.0),
     ("00:00:00", None), ("", None), ("INVALID", None)],
)  # fmt: skip
def test_processor_time_as_slurm_writes_it(text: str, seconds: float | None) -> None:
    assert cpu_seconds(text) == seconds


def test_each_start_of_a_task_counts_and_others_jobs_do_not() -> None:
    text = rows(
        "17_0|30|2|00:10.000||REQUEUED|gat-seq@run",
        "17_0.batch|30|2|00:10.000|50|CANCELLED|batch",
        "17_0|100|2|02:00.000||COMPLETED|gat-seq@run",
        "17_0.batch|100|2|00:01.000|700|COMPLETED|batch",
        "17_0.extern|100|2|00:00.001|700|COMPLETED|extern",
        "17_0.0|98|2|01:59.000|600|COMPLETED|python",
        "17_1|40|2|00:00:00||RUNNING|gat-seq@run",
        "17_[2-3]|0|0|00:00:00||PENDING|gat-seq@run",
        "18_0|1000|64|10:00.000||COMPLETED|theirs",
        "18_0.0|1000|64|10:00.000|99|COMPLETED|theirs",
        "19|5|1|00:00:00||COMPLETED|by-hand",
        "damaged",
    )
    assert parse_accounts(text, {"17": "gat-seq", "18": "gat-pp2", "19": None}) == [
        AccountedTask("17_0", 30, 2, 10.0),
        AccountedTask("17_0", 100, 2, 120.0, 600.0),
        AccountedTask("17_1", 40, 2, None, running=True),
        AccountedTask("19", 5, 1, None),
    ]


def test_what_a_real_sacct_said_of_a_requeued_and_cancelled_task_and_of_a_done_one() -> None:
    """As the test cluster's sacct wrote it."""
    text = rows(
        "1_0|2|1|00:02.163||REQUEUED|gat-seq@cap",
        "1_0.batch|3|1|00:00.011|0|FAILED|batch",
        "1_0.0|3|1|00:02.152|0|FAILED|python",
        "2_0|14|2|00:16.906|0|COMPLETED|gat-pp2@cap",
        "2_0.batch|14|1|00:00.011|0|COMPLETED|batch",
        "2_0.0|14|2|00:16.894|0|COMPLETED|python",
        "1_0|3|1|00:03.014||CANCELLED by 0|gat-seq@cap",
        "1_0.batch|4|1|00:00.013|0|FAILED|batch",
        "1_0.0|4|1|00:00:03|0|FAILED|python",
    )
    assert parse_accounts(text, {"1": "gat-seq", "2": "gat-pp2"}) == [
        AccountedTask("1_0", 2, 1, 2.163),
        AccountedTask("2_0", 14, 2, 16.906),
        AccountedTask("1_0", 3, 1, 3.014),
    ]


def test_one_question_for_all_jobs_and_its_answer_is_kept(run: RunPaths) -> None:
    record_submission(run, "slurm", "gat-pp2", [0, 1], "18", WHOLE)
    sacct(run, rows(
        "17_0|100|2|03:00.000||COMPLETED|gat-seq@run", "17_0.0|98|2|03:00.000|600|COMPLETED|x",
        "17_1|50|2|01:00.000||COMPLETED|gat-seq@run", "17_1.0|48|2|01:00.000|300|COMPLETED|x",
        "18_0|60|4|00:00:00||RUNNING|gat-pp2@run",
    ))  # fmt: skip
    cost = run_cost(run).accounted
    assert cost is not None
    assert (cost.tasks, cost.running, cost.core_s, cost.ended_core_s) == (3, 1, 540.0, 300.0)
    assert (cost.cpu_s, cost.efficiency, cost.energy_j) == (240.0, 0.8, 900.0)
    asked = (run.root.parent / "bin/asked").read_text().splitlines()
    assert len(asked) == 1
    assert "--jobs=17,18" in asked[0]
    (run.root.parent / "bin/sacct").unlink()
    assert run_cost(run).accounted == read_accounted(run) == cost


def test_a_report_waits_until_the_accounting_has_what_ended(run: RunPaths) -> None:
    """slurmdbd hears of the end of a job some time after the jobs that wait for it."""
    (one, *_) = read_manifest(run.manifest)
    attempt = run.cell(one.id).claim_attempt()
    header = {"host": "n", "pid": 1, "slurm": {"SLURM_JOB_ID": "17_0"}}
    attempt.records(0).write_text(json.dumps(header) + "\n")
    later = rows("17_0|45|2|00:01.000||COMPLETED|gat-seq@run")
    sacct(run, rows("17_0|45|2|00:00:00||RUNNING|gat-seq@run"))
    shim = run.root.parent / "bin/sacct"
    shim.write_text(f"{shim.read_text()}echo '{later.strip()}' >{shim.parent}/answer\n")
    cost = run_cost(run, patience_s=60.0).accounted
    assert cost is not None
    assert (cost.running, cost.core_s) == (0, 90.0)
    assert len((shim.parent / "asked").read_text().splitlines()) == 2


def test_energy_of_shared_nodes_is_nobodys(run: RunPaths) -> None:
    answer = rows("17_0|9|2|00:01.000||COMPLETED|gat-seq@run", "17_0.0|9|2|00:01.0|6|COMPLETED|x")
    sacct(run, answer)
    whole = run_cost(run).accounted
    assert whole is not None
    assert whole.energy_j == 6.0
    record_submission(run, "slurm", "gat-seq", [0], "17", Launch())
    shared = run_cost(run).accounted
    assert shared is not None
    assert shared.energy_j is None
    sacct(run, answer + rows("17_1|9|2|00:01.000||COMPLETED|gat-seq@run"))
    run.submissions.write_text(run.submissions.read_text().splitlines()[0] + "\n")
    of_some = run_cost(run).accounted
    assert of_some is not None
    assert of_some.energy_j is None


def test_nothing_asked_is_nothing_known(run: RunPaths) -> None:
    assert ask_sacct({"17": None}) is None
    assert run_cost(run).accounted is None
    sacct(run, "")
    assert run_cost(run).accounted is None
    assert not run.accounting.exists()


def test_results_tell_what_their_ranks_held(run: RunPaths) -> None:
    finish(run, "gat-seq", 0, 30)
    finish(run, "gat-pp2", 0, 10, status="failed")
    finish(run, "gat-pp2", 0, 10, provenance={})
    recorded = run_cost(run).recorded
    assert (recorded.core_s, recorded.attempts, recorded.untold) == (60 + 40, 2, 1)


@pytest.mark.parametrize(
    "changes",
    [{"provenance": {"threads": None}}, {"layout": {}}, {"ended_at": "soon"}, {"started_at": ""}],
)
def test_a_result_that_does_not_tell(run: RunPaths, changes: dict[str, Any]) -> None:
    finish(run, "gat-seq", 0, 30)
    result = Result.read(next(run.cells.glob("*/attempt-1/result.json")))
    assert attempt_core_s(result) == 60
    assert attempt_core_s(replace(result, **changes)) is None


def test_the_rest_is_predicted_by_repeats_then_by_the_array(run: RunPaths) -> None:
    finish(run, "gat-seq", 0, 30)
    assert run_cost(run).predicted == PredictedCost(60.0, 1, 2)
    finish(run, "gat-pp2", 1, 10)
    assert run_cost(run).predicted == PredictedCost(60.0 + 40.0, 2, 0)
    more = GRID | {"repeats": 3, "microbatches": [1, 2], "seq_microbatches": 1}
    new = plan({"name": "run", "grids": [more | {"layouts": ["seq", "pp2", "pp4"]}]}).cells
    known = {cell.id for cell in read_manifest(run.manifest)}
    others = [cell for cell in new if cell.id not in known]
    # One repeat of seq, one of pp2, three of pp2 with other micro-batches, and six of pp4.
    assert predict_cells(run, others) == PredictedCost(60.0 + 4 * 40.0, 5, 6)


def test_the_accounting_tells_more_of_a_cell_than_its_results(run: RunPaths) -> None:
    finish(run, "gat-seq", 0, 30)
    sacct(run, rows("17_0|45|2|00:01.000||COMPLETED|gat-seq@run"))
    assert run_cost(run).predicted == PredictedCost(90.0, 1, 2)


def test_a_job_of_several_arrays_by_hand_is_taken_as_it_is(run: RunPaths) -> None:
    run.submissions.unlink()
    for one in read_manifest(run.manifest)[:2]:
        attempt = run.cell(one.id).claim_attempt()
        header = {"host": "n", "pid": 1, "slurm": {"SLURM_JOB_ID": "19_0"}}
        attempt.records(0).write_text(json.dumps(header) + "\n")
    assert len({one.array for one in read_manifest(run.manifest)[:2]}) == 2
    sacct(run, rows("19_0|45|2|00:01.000||COMPLETED|gat-paired@run"))
    accounted = run_cost(run).accounted
    assert accounted is not None
    assert accounted.core_s == 90.0


def test_a_task_of_several_cells_does_not_tell_what_one_took(run: RunPaths) -> None:
    finish(run, "gat-seq", 0, 30)
    for one in (read_manifest(run.manifest)[0], read_manifest(run.manifest)[1]):
        attempt = run.cell(one.id).claim_attempt()
        header = {"host": "n", "pid": 1, "slurm": {"SLURM_JOB_ID": "17_0"}}
        attempt.records(0).write_text(json.dumps(header) + "\n")
    sacct(run, rows("17_0|45|2|00:01.000||COMPLETED|gat-seq@run"))
    assert run_cost(run).predicted.core_s == 60.0


def test_a_cell_of_a_block_holds_what_the_largest_needs(tmp_path: Path) -> None:
    one = plan({"name": "paired", "grids": [GRID]})
    run = create_run_folder(one, tmp_path / "paired", WHOLE, paired=True)
    record_submission(run, "slurm", "gat-paired", [0, 1], "18", WHOLE)
    finish(run, "gat-seq", 0, 30)
    finish(run, "gat-pp2", 0, 10)
    # Thirty seconds of two threads and ten of four, on the CPUs of two ranks of two threads.
    assert run_cost(run).predicted == PredictedCost(120.0 + 40.0, 2, 0)
    assert run_cost(run).recorded.core_s == 60 + 40


def test_at_most_every_task_takes_its_time_limit(run: RunPaths) -> None:
    site = Site(cpus_per_task=4, time="00:30:00", max_requeues=2)
    arrays = group_by_array(read_manifest(run.manifest))
    asked = [(len(array.tasks), resources_for(array.layout, site)) for array in arrays]
    most = most_core_hours(asked, Launch("here", site))
    # Two cells of one rank and two of two ranks, four CPUs each, half an hour.
    assert (most.once, most.requeued, most.whole_nodes) == (12.0, 36.0, False)
    assert most_line(most) == (
        "at most 12 core-hours, each task up to its time limit (36 if each is requeued as often as "
        "it may)"
    )
    assert "whole nodes" in most_line(replace(most, whole_nodes=True))
    assert most_line(replace(most, requeued=12.0)).endswith("up to its time limit")


def test_a_dry_run_tells_the_most_and_of_a_run_that_is_there_the_prediction(
    run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(run, "gat-seq", 0, 30)
    spec = run.root.parent / "run.yaml"
    spec.write_text(json.dumps({"name": "run", "grids": [GRID | {"repeats": 4}]}))
    assert main(["submit", str(spec), "--dry-run", "--runs", str(run.root.parent)]) == 0
    said = capsys.readouterr().out
    assert "\nat most 12 core-hours, each task up to its time limit (72 if each is requ" in said
    assert (
        "\npredicted: 0.0333 core-hours of 2 cells that the run does not have, by the done ones of "
        "their configuration or array; 2 of which no cell of the same array is done: unknown\n"
    ) in said


def test_what_is_submitted_later_is_told_with_its_prediction(
    run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = tuple(read_manifest(run.manifest))
    done = Submission(run.root, "slurm", (), cells, most=MostCoreHours(1.0, 1.0, False))
    print_submission(done)
    assert "predicted" not in capsys.readouterr().out
    finish(run, "gat-seq", 0, 36)
    print_submission(done)
    assert (
        "\npredicted: 0.04 core-hours of 2 cells, by the done ones of their configuration or "
        "array; 2 of which no cell of the same array is done: unknown\n"
    ) in capsys.readouterr().out


def test_status_tells_it_and_says_what_is_unknown(
    run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(run.root)]) == 3
    assert "cost" not in capsys.readouterr().out
    finish(run, "gat-seq", 0, 30)
    assert main(["status", str(run.root), "--cost"]) == 3
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "cost: 0.0167 core-hours of 1 attempts, from their ranks' start to their results, as sacct "
        "says nothing; CPU efficiency unknown",
        "predicted: 0.0167 core-hours of 1 cell that is not done, by the done ones of its "
        "configuration or array; 2 of which no cell of the same array is done: unknown",
    ]
    sacct(run, rows("17_0|36|2|00:36.000||COMPLETED|gat-seq@run"))
    assert main(["status", str(run.root), "--cost", "--json"]) == 3
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert cost["accounted"]["core_s"] == 72
    assert cost["efficiency"] == 0.5
    assert cost["accounted"]["energy_j"] is None
    lines = list(cost_lines(run_cost(run)))
    assert lines[0].startswith("cost: 0.02 core-hours of 1 tasks, as sacct has them at 20")
    assert lines[0].endswith("; CPU efficiency 50%")


def test_nothing_done_predicts_nothing() -> None:
    line = predicted_line(PredictedCost(0.0, 0, 3), "cell", "cells that are not done")
    assert line == (
        "predicted: cells that are not done: 3 of which no cell of the same array is done: unknown"
    )


def test_the_report_says_what_it_cost(run: RunPaths) -> None:
    assert cost_text(load_run(run.root)) == ""
    finish(run, "gat-seq", 0, 36)
    run.cell(read_manifest(run.manifest)[1].id).claim_attempt()
    recorded = (
        "0.02 core-hours of 1 attempts, from their ranks' start to their results; of 1 attempts "
        "without a result it is not known"
    )
    assert cost_text(load_run(run.root)) == recorded
    cost = AccountedCost("2026-01-01T00:00:00+00:00", 3, 1, 7200.0, 3600.0, 1800.0, 3.6e6)
    write_accounted(run, cost)
    assert cost_text(load_run(run.root)) == (
        "2 core-hours of 3 tasks, 1 of them still running, as Slurm's accounting had them at "
        "2026-01-01T00:00:00+00:00; CPU efficiency 50%; 1 kWh of the nodes while the ranks ran; "
        + recorded
    )
    write_accounted(run, replace(cost, running=0, cpu_s=None, energy_j=None))
    assert "of 3 tasks, as Slurm's accounting" in cost_text(load_run(run.root))
    assert "CPU efficiency unknown; 0.02 core" in cost_text(load_run(run.root))
    run.accounting.write_text("{")
    assert "accounting.json: found damaged JSON" in cost_text(load_run(run.root))
    with pytest.raises(InputError):
        read_accounted(run)
