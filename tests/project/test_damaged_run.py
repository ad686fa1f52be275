"""Every file of a run folder damaged in many ways: an error line, or the same cells."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from analysis.load.run_data import load_run
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.failures import utc_now
from jobs.run.status import status
from jobs.run.submission_records import SubmissionRecord
from tests.tools.make_run import make_run, small_sweep

CELLS = [e for e in small_sweep(2, 6, 2) if str(e.layout) == "pp2" and e.model.name == "gat"]
EVERY = [each.id for each in CELLS]
DAMAGE = ("removed", "a folder", "empty", "not UTF-8", "two thirds")


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how != "removed":
        damaged = {"empty": b"", "not UTF-8": b"\xff\xfe\n"}
        path.write_bytes(damaged.get(how, content[: 2 * len(content) // 3]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_run(tmp_path_factory.mktemp("whole") / "run", CELLS)
    for index in range(len(CELLS)):
        place = {"array": "gat-pp2", "indices": str(index), "job_id": "12", "host": "n1"}
        record = SubmissionRecord(cluster="slurm", at=utc_now(), user="me", **place)
        with RunPaths(root).submissions.open("a") as stream:
            stream.write(json.dumps(asdict(record)) + "\n")
    return root


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("file", ["manifest.jsonl", "submissions.jsonl"])
def test_a_damaged_file_of_the_run(file: str, how: str, whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "run")
    damage(root / file, how)
    # A report does not read who submitted the run. All cells have ended, so a lost submission
    # changes none of them.
    if file == "submissions.jsonl":
        assert load_run(root).cells["counts"].tolist() == [True] * len(CELLS)
        if how in ("removed", "empty"):
            assert [each.cell for each in status(root).cells] == EVERY
            return
    for reader in (status,) if file == "submissions.jsonl" else (load_run, status):
        with pytest.raises(InputError) as refused:
            reader(root)
        assert str(root) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("file", ["result.json", "rank-0000.jsonl", "rank-0001.jsonl"])
def test_a_damaged_file_of_an_attempt(file: str, how: str, whole: Path, tmp_path: Path) -> None:
    """It sets its cell apart; whatever the damage, the others are as they were."""
    root, cell = shutil.copytree(whole, tmp_path / "run"), EVERY[1]
    damage(RunPaths(root).cell(cell).attempt(1).root / file, how)
    cells = load_run(root).cells
    counts = dict(zip(cells["cell"], cells["counts"], strict=True))
    assert counts == {each: each != cell for each in EVERY}
    states = {each.cell: each.state for each in status(root).cells}
    assert list(states) == EVERY
    if file == "result.json":
        # As long as no other line is written, an attempt without a result may still run.
        assert states[cell] == ("running" if how == "removed" else "failed")
