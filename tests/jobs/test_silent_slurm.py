"""What status and cancel make of cells while Slurm does not answer, or contradicts itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Check, Failure, Result
from jobs.actions.cancel import cancel
from jobs.actions.rerun import rerun, select_cells
from jobs.cli import main
from jobs.cluster import slurm_queue
from jobs.cluster.launch import Launch
from jobs.cluster.slurm_queue import QueueAnswer, QueuedJob
from jobs.folder.run_folder import create_run_folder
from jobs.folder.submission_records import read_submissions, record_submission
from jobs.spec.planning import plan
from jobs.state import run_status
from jobs.state.run_status import status
from jobs.state.states import CellStatus

GRID = {"models": "gat", "data": "synthetic-citation", "layouts": "seq", "seeds": [0, 1]}
DOWN = "Unable to contact slurm controller (connect failure)"
LATER = "2126-01-01T00:00:00+00:00"
EARLIER = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Two cells of one array, submitted as job 17, on a machine whose squeue and sacct fail."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    one = plan({"name": "run", "defaults": {"train_steps": 10}, "grids": [GRID]})
    paths = create_run_folder(one, tmp_path / "run", Launch())
    record_submission(paths, "slurm", "gat-seq", [0, 1], "17", Launch())
    return paths


def told(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """As if Slurm had given this answer a moment ago."""
    answer = QueueAnswer(time.time() + 10, **values)
    monkeypatch.setattr(run_status, "query_queue", lambda *_, **__: answer)


def finish(run: RunPaths, index: int, ended_at: str = LATER, **changes: Any) -> None:
    one = read_manifest(run.manifest)[index]
    attempt = run.cell(one.id).claim_attempt()
    values: dict[str, Any] = {
        "cell": one.id, "attempt": attempt.number, "status": "done", "experiment": {},
        "layout": {}, "provenance": {}, "started_at": EARLIER, "ended_at": ended_at,
        "train_steps": 10, "test_steps": 1, "samples_per_step": 5,
    }  # fmt: skip
    Result(**values | changes).write(attempt.result)


def states(run: RunPaths) -> list[str]:
    return [cell.state for cell in status(run.root).cells]


@pytest.mark.parametrize("error", [DOWN, "no Slurm here"])
def test_what_waited_in_slurm_is_unknown(
    error: str, run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, error=error)
    known = status(run.root)
    assert [(c.state, c.detail) for c in known.cells] == [
        ("unknown", f"Slurm does not say: {error}")
    ] * 2
    assert known.live
    assert known.slurm == error


def test_files_tell_what_slurm_does_not(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, error=DOWN)
    failure = Failure(0, "n1", 3, "train", "MemoryError", "")
    finish(run, 0)
    finish(run, 1, status="failed", failure=failure)
    assert states(run) == ["done", "failed"]
    # A result from before the submission says nothing of it, nor one that asks for a requeue.
    finish(run, 1, EARLIER, status="failed", failure=failure)
    assert states(run) == ["done", "unknown"]
    finish(run, 1, status="interrupted")
    assert states(run) == ["done", "unknown"]


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", "pending"),
        ("RUNNING", "running"),
        ("TIMEOUT", "timed out"),
        ("CANCELLED", "cancelled"),
        # Slurm queues these again.
        ("NODE_FAIL", "unknown"),
        ("PREEMPTED", "unknown"),
    ],
)
def test_the_accounting_speaks_where_the_queue_does_not(
    word: str, state: str, run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, error=DOWN, accounted={"17_0": word})
    assert states(run) == [state, "unknown"]


def test_a_job_that_the_accounting_has_and_the_queue_has_not_is_unknown(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, accounted={"17_0": "RUNNING", "17_1": "CANCELLED"})
    first, second = status(run.root).cells
    assert (first.state, first.detail) == ("unknown", "squeue does not list 17_0, sacct: RUNNING")
    assert second.state == "cancelled"


def test_anothers_job_under_an_id_of_ours_is_not_ours(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def queued(name: str) -> QueuedJob:
        return QueuedJob("17", "0-1", "PENDING", "Priority", name, "/home/x.sh", "")

    told(monkeypatch, jobs=(queued("theirs"),))
    assert states(run) == ["missing", "missing"]
    assert cancel(run.root) == []
    told(monkeypatch, jobs=(queued("gat-seq@run"),))
    assert states(run) == ["pending", "pending"]


def test_jobs_of_the_run_that_a_copy_was_made_of_are_not_the_copys(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = RunPaths(tmp_path / "copy")
    shutil.copytree(run.root, copy.root)

    def queued(number: str, script: Path) -> None:
        job = QueuedJob(
            number, "0-1", "PENDING", "Priority", "gat-seq@run", str(script), str(run.root)
        )
        told(monkeypatch, jobs=(job,), accounted={f"{number}_0": "PENDING"})

    queued("17", run.root / ".submitit" / "a.sh")
    assert (states(run), states(copy)) == (["pending"] * 2, ["missing"] * 2)
    assert cancel(copy.root) == []
    # Its script by hand, whose comment is that of the first.
    queued("20", copy.script("gat-seq"))
    assert (states(run), states(copy)) == (["missing"] * 2, ["pending"] * 2)
    assert cancel(run.root) == []
    # The jobs of a run that was moved are those of the moved one.
    queued("17", run.root / ".submitit" / "a.sh")
    moved = RunPaths(run.root.rename(tmp_path / "moved"))
    assert states(moved) == ["pending"] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_run_that_is_mounted_twice_has_its_jobs_in_both_places(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As home folders are, whose real path on one node is not that on another."""
    script = run.root / ".submitit" / "a.sh"
    job = QueuedJob("17", "0-1", "PENDING", "Prio", "gat-seq@run", str(script), str(run.root))
    told(monkeypatch, jobs=(job,))
    (tmp_path / "mount").mkdir()
    bind = ("/bin/mount", "--bind", str(run.root), str(tmp_path / "mount"))
    done = subprocess.run(bind, check=False)
    if done.returncode:
        pytest.skip("no mounts here")
    try:
        assert states(RunPaths(tmp_path / "mount")) == ["pending"] * 2
    finally:
        subprocess.run(["/bin/umount", str(tmp_path / "mount")], check=True)


def test_a_job_without_a_script_is_no_runs(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm says (null), which is no file of the folder that a user has gone to."""
    job = QueuedJob("20", "0-1", "PENDING", "Priority", "wrap", "(null)", "(null)")
    told(monkeypatch, jobs=(job,))
    monkeypatch.chdir(run.root)
    assert cancel(".") == []


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ("0-1", ["pending", "pending"]),
        # Of more than ten tasks at equal distances Slurm tells the distance.
        ("1-21:2%4", ["missing", "pending"]),
        ("0-1,7-...", ["unknown", "unknown"]),
        ("0x3", ["unknown", "unknown"]),
    ],
)
def test_tasks_are_read_in_every_form_or_else_unknown(
    indices: str, expected: list[str], run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = QueuedJob("17", indices, "PENDING", "Priority", "gat-seq@run", "", "")
    told(monkeypatch, jobs=(job,))
    assert states(run) == expected
    submissions = read_submissions(run)
    monkeypatch.setattr(run_status, "query_queue", lambda *_, **__: QueueAnswer(0.0, (job,)))
    assert run_status.live_slurm_jobs(run, submissions)[0] == ["17"]


def test_an_answer_that_cannot_be_read_is_none(run: RunPaths, tmp_path: Path) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/bash\necho 'Welcome!'; echo '17_0 PENDING None gat-seq@run'\n")
    squeue.chmod(0o755)
    assert states(run) == ["unknown", "unknown"]
    assert "which cannot be read" in status(run.root).slurm
    squeue.write_text("#!/bin/bash\necho 'Welcome!'\n")
    assert [cell.state for cell in status(run.root, fresh=True).cells] == ["missing", "missing"]


def test_cells_that_may_run_are_rerun_by_force_alone(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [CellStatus("a", "x", 0, "unknown", detail="why"), CellStatus("b", "x", 1, "failed")]
    assert [c.cell for c in select_cells(cells, missing=True)] == ["b"]
    assert [c.cell for c in select_cells(cells, failed=True)] == ["b"]
    assert [c.cell for c in select_cells(cells, missing=True, force=True)] == ["a", "b"]
    with pytest.raises(InputError, match="rerun: found x 0, of which why; allowed: --force"):
        select_cells(cells, array="x", indices=[0])
    assert len(select_cells(cells, array="x", force=True)) == 2

    told(monkeypatch, error=DOWN)
    with pytest.raises(InputError) as caught:
        rerun(run.root, missing=True, cluster="local")
    assert str(caught.value) == (
        f"{run.root}: found no cell to run again (2 unknown); of gat-seq 0 Slurm does not say: "
        f"{DOWN}; allowed: a run with such cells, or --force, which may run unknown ones twice"
    )


def test_cancel_refuses_ids_that_may_be_anothers(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, error=DOWN)
    with pytest.raises(InputError) as caught:
        cancel(run.root)
    assert str(caught.value) == (
        "cancel: found jobs 17, which may have ended, their ids another's by now: Slurm does not "
        f"say ({DOWN}); allowed: to try again, or --force"
    )
    told(monkeypatch, error=DOWN, accounted={"17_0": "COMPLETED", "17_1": "TIMEOUT"})
    assert cancel(run.root) == []


def test_status_ends_with_what_a_gate_needs(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends_with() -> int:
        return main(["status", str(run.root)])

    told(monkeypatch, error=DOWN)
    assert ends_with() == 3
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [
        f"run: 2 unknown ({DOWN})",
        f"  unknown: 2 cells may run or wait; Slurm does not say: {DOWN}",
    ]
    told(monkeypatch, accounted={"17_0": "CANCELLED"})
    assert ends_with() == 1
    finish(run, 0)
    finish(run, 1, audit=[Check("edges", "invalid", "lost")])
    assert ends_with() == 1
    finish(run, 1, audit=[Check("noisy", "suspect", "")])
    assert ends_with() == 0
    with run.manifest.open("a") as stream:
        stream.write("{\n")
    assert ends_with() == 2


def test_an_end_that_the_accounting_has_not_heard_of_yet_is_the_queues(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    ended = "\x1fNonZeroExitCode\x1fgat-seq@run\x1f/x\x1f"
    rows = [f"17_0\x1fTIMEOUT{ended}", f"17_1\x1fFAILED{ended}"]
    script(tmp_path, "squeue", f"printf '%s\\n' '{rows[0]}' '{rows[1]}'")
    known = [("17_0", "RUNNING"), ("17_1", "FAILED"), ("17_1.0", "OUT_OF_MEMORY")]
    lines = [f"{job}\x1f{state}\x1fgat-seq@run" for job, state in known]
    script(tmp_path, "sacct", f"printf '%s\\n' '{lines[0]}' '{lines[1]}' '{lines[2]}'")
    line = json.loads(run.submissions.read_text())
    run.submissions.write_text(json.dumps(line | {"at": EARLIER}) + "\n")
    assert states(run) == ["timed out", "out of memory"]


def test_the_queue_names_the_tasks_of_a_part_by_slurms_ids(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    part = json.loads(run.submissions.read_text())
    part |= {"at": EARLIER, "job_id": "18", "indices": "1", "offset": 1}
    run.submissions.write_text(json.dumps(part) + "\n")
    row = "18_0\x1fTIMEOUT\x1fTimeLimit\x1fgat-seq.1@run\x1f/x\x1f"
    script(tmp_path, "squeue", f"echo '{row}'")
    script(tmp_path, "sacct", "")
    assert states(run) == ["missing", "timed out"]


def script(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/bash\n{body}\n")
    file.chmod(0o755)


def test_squeue_is_asked_again_and_everything_is_asked_for(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    monkeypatch.setenv("SACCT_FORMAT", "JobID")
    calls = tmp_path / "calls"
    row = "17_[0-1]\x1fPENDING\x1fPriority\x1fgat-seq@run\x1f/x\x1f"
    script(
        tmp_path, "squeue",
        f"echo \"$* [$SQUEUE_STATES]\" >>'{calls}'\n"
        f"[ \"$(wc -l <'{calls}')\" -gt 2 ] && echo '{row}' && exit\n"
        f"echo 'slurm_load_jobs error: {DOWN}' >&2; exit 1",
    )  # fmt: skip
    script(tmp_path, "sacct", f"echo \"$* [$SACCT_FORMAT]\" >>'{calls}'")
    assert states(run) == ["pending", "pending"]
    *asked, sacct = calls.read_text().splitlines()
    assert len(asked) == 3
    assert all("--all" in line and line.endswith("[]") for line in asked)
    assert "--jobs=17" in sacct
    assert sacct.endswith("[]")


def test_a_queue_that_hangs_is_left(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_queue, "_PATIENCE_S", 1.0)
    for name in ("squeue", "sacct"):
        script(tmp_path, name, "exec sleep 600")
    known = status(run.root)
    assert known.counts() == {"unknown": 2}
    assert known.slurm == "squeue gave no answer within 1 s"


def test_a_job_gone_within_a_second_of_its_submission_is_not_pending(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled at once, say: Slurm was asked after the submission, and has its word."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script(tmp_path, "squeue", "")
    script(tmp_path, "sacct", "echo '17_[0-1]\x1fCANCELLED by 0\x1fgat-seq@run'")
    record_submission(run, "slurm", "gat-seq", [0, 1], "17", Launch())
    assert status(run.root).counts() == {"cancelled": 2}


def test_cells_that_end_while_slurm_is_asked_are_done(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that had begun when its files were read, and one that had not."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    begun, later = read_manifest(run.manifest)
    finish(run, 0)
    finish(run, 1)
    result, folder = run.cell(begun.id).attempt(1).result, run.cell(later.id).root
    result.rename(tmp_path / "result")
    folder.rename(tmp_path / "cell")
    end = f"mv '{tmp_path}/result' '{result}'; mv '{tmp_path}/cell' '{folder}'"
    script(tmp_path, "squeue", f"[ ! -e '{tmp_path}/cell' ] || {{ {end}; }}")
    script(tmp_path, "sacct", "echo '17_[0-1]\x1fCOMPLETED\x1fgat-seq@run'")
    assert status(run.root).counts() == {"done": 2}


def test_an_action_does_not_trust_an_answer_of_ten_seconds_ago(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script(tmp_path, "squeue", "")
    script(tmp_path, "sacct", "")
    line = json.loads(run.submissions.read_text())
    run.submissions.write_text(json.dumps(line | {"at": EARLIER}) + "\n")
    assert status(run.root).counts() == {"missing": 2}
    row = asdict(QueuedJob("17", "[0-1]", "PENDING", "Priority", "gat-seq@run", "/x", ""))
    shown = "\x1f".join(["17_[0-1]", *list(row.values())[2:]])
    script(tmp_path, "squeue", f"echo '{shown}'")
    assert status(run.root).counts() == {"missing": 2}
    with pytest.raises(InputError, match=r"no cell to run again \(2 pending\)"):
        rerun(run.root, missing=True, cluster="local")
