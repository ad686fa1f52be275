"""Every file of a run folder damaged in many ways: an error line, or the same cells."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from analysis.load.run_data import load_run
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.failures import utc_now
from jobs.run.status import status
from jobs.run.submission_records import SubmissionRecord, append_line
from tests.tools.make_run import make_run, small_sweep

CELLS = [e for e in small_sweep(2, 6, 2) if str(e.layout) == "pp2" and e.model.name == "gat"]


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def holding(content: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(content)

    return damage


def cut(share: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])

    return damage


DAMAGE: dict[str, Callable[[Path], None]] = {
    "removed": Path.unlink,
    "a folder": folder,
    "empty": holding(b""),
    "not UTF-8": holding(b"\xff\xfe\n"),
    "two thirds": cut(0.66),
}
HARMLESS = {
    # All cells have ended, so a lost submission changes none of them.
    ("submissions.jsonl", "removed"),
    ("submissions.jsonl", "empty"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_run(tmp_path_factory.mktemp("whole") / "run", CELLS)
    for index in range(len(CELLS)):
        place = {"array": "gat-pp2", "indices": str(index), "job_id": "12", "host": "n1"}
        record = SubmissionRecord(cluster="slurm", at=utc_now(), user="me", **place)
        append_line(RunPaths(root).submissions, json.dumps(asdict(record)))
    return root


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("file", ["manifest.jsonl", "submissions.jsonl"])
def test_a_damaged_file_of_the_run(file: str, how: str, whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "run")
    DAMAGE[how](root / file)
    if (file, how) in HARMLESS:
        assert load_run(root).cells["counts"].tolist() == [True] * len(CELLS)
        assert len(status(root).cells) == len(CELLS)
        return
    # A report does not read who submitted the run.
    readers = (status,) if file == "submissions.jsonl" else (load_run, status)
    for reader in readers:
        with pytest.raises(InputError) as refused:
            reader(root)
        assert "\n" not in str(refused.value)
        assert str(root) in str(refused.value)


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("file", ["result.json", "rank-0000.jsonl", "rank-0001.jsonl"])
def test_a_damaged_file_of_an_attempt(file: str, how: str, whole: Path, tmp_path: Path) -> None:
    """It sets its cell apart; whatever the damage, the others are as they were."""
    root = shutil.copytree(whole, tmp_path / "run")
    cell = CELLS[1].id
    path = RunPaths(root).cell(cell).attempt(1).root / file
    DAMAGE[how](path)
    run = load_run(root)
    assert run.cells["cell"].tolist() == [each.id for each in CELLS]
    assert run.cells["counts"].tolist() == [each.id != cell for each in CELLS]
    reported = status(root)
    assert [each.cell for each in reported.cells] == [each.id for each in CELLS]
    if file == "result.json":
        state = next(each.state for each in reported.cells if each.cell == cell)
        # As long as no other line is written, an attempt without a result may still run.
        assert state == ("running" if how == "removed" else "failed")
