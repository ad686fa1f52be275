"""Run folders: made whole or not at all, readable for others, and extended without renumbering."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.launch import Launch
from jobs.folder.locked_files import append_lines, open_run, run_lock
from jobs.folder.run_folder import create_run_folder, extend_run_folder
from jobs.folder.submission_records import read_submissions, record_submission, supervisor_is_alive
from jobs.spec.planning import Plan, plan


def planned(*overrides: str, **grid: Any) -> Plan:
    base = {"models": "gat", "data": "synthetic-citation", "layouts": ["seq", "pp2"]}
    return plan({"name": "run", "grids": [base | grid]}, overrides)


def make(folder: Path, one: Plan) -> RunPaths:
    return create_run_folder(one, folder / one.name, Launch())


def test_a_run_folder_holds_what_the_contract_says(tmp_path: Path) -> None:
    one = planned("train_steps=5", seeds=[0, 1])
    paths = make(tmp_path, one)
    assert {path.name for path in paths.root.iterdir()} == {
        "sweep.yaml", "manifest.jsonl", "provenance.json", "arrays", "cells", "logs", "code",
        "code.json", ".private",
    }  # fmt: skip
    assert {path.name for path in paths.arrays.iterdir()} == {"gat-seq.sbatch", "gat-pp2.sbatch"}
    assert tuple(read_manifest(paths.manifest)) == one.cells
    assert list(tmp_path.iterdir()) == [paths.root]


def test_the_spec_is_kept_as_written_with_its_overrides_noted(tmp_path: Path) -> None:
    one = planned("train_steps=5", "seeds=[0, 1]")
    paths = make(tmp_path, one)
    text = paths.sweep.read_text()
    assert text == '# --set "train_steps=5"\n# --set "seeds=[0, 1]"\n' + one.text
    again = plan(paths.sweep, one.overrides)
    assert [cell.id for cell in again.cells] == [cell.id for cell in one.cells]


def test_provenance_says_where_a_run_is_from(tmp_path: Path) -> None:
    facts = json.loads(make(tmp_path, planned()).provenance.read_text())
    assert {"commit", "versions", "host", "user", "command", "created_at"} <= facts.keys()
    assert facts["cells"] == 2
    assert facts["versions"]["torch"]


def test_others_may_read_a_run_and_not_write_it(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        paths = make(tmp_path, planned())
    finally:
        os.umask(before)
    private = (paths.secret.parent, paths.secret)
    for path in [paths.root, *paths.root.rglob("*")]:
        if path in private:
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o044 == 0o044, path
        assert mode & 0o022 == 0, path
        assert path.is_file() or mode & 0o055 == 0o055, path


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_secret_of_a_runs_ranks_is_for_its_user_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        paths = make(tmp_path, planned())
    finally:
        os.umask(before)
    assert stat.S_IMODE(paths.secret.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(paths.secret.stat().st_mode) == 0o600
    text = paths.secret.read_text().strip().encode()
    others = [path for path in paths.root.rglob("*") if path.is_file() and path != paths.secret]
    assert [path for path in others if text in path.read_bytes()] == []


def test_a_second_run_of_the_same_name_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    paths = make(tmp_path, planned())
    before = {path: path.read_bytes() for path in paths.root.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="another --name, or --extend"):
        make(tmp_path, planned(seeds=[5]))
    assert {p: p.read_bytes() for p in paths.root.rglob("*") if p.is_file()} == before
    assert list(tmp_path.iterdir()) == [paths.root]


def test_of_many_submits_at_once_one_wins(tmp_path: Path) -> None:
    one = planned(seeds=list(range(20)))

    def attempt(_: int) -> bool:
        try:
            make(tmp_path, one)
        except InputError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert len(read_manifest(RunPaths(tmp_path / "run").manifest)) == 40


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--runs"):
        make(tmp_path / "file", planned())


def test_extending_appends_and_leaves_old_lines_alone(tmp_path: Path) -> None:
    paths = make(tmp_path, planned(seeds=[1]))
    before = paths.manifest.read_bytes()
    new = extend_run_folder(planned(seeds=[0, 1, 2]), paths, Launch(), Launch())
    assert paths.manifest.read_bytes().startswith(before)
    assert [(c.array, c.index, c.experiment.seed) for c in new.cells] == [
        ("gat-seq", 1, 0), ("gat-pp2", 1, 0), ("gat-seq", 2, 2), ("gat-pp2", 2, 2),
    ]  # fmt: skip
    assert len(read_manifest(paths.manifest)) == 6
    assert "#SBATCH --array=0-2\n" in paths.script("gat-seq").read_text()
    assert (paths.root / "sweep-2.yaml").is_file()
    with pytest.raises(InputError, match="no cell that"):
        extend_run_folder(planned(seeds=[0, 1, 2]), paths, Launch(), Launch())


def test_lines_are_added_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_lines(path, ["one", "two"])
    append_lines(path, ["three"])
    assert path.read_text() == "one\ntwo\nthree\n"
    path.write_text("one\ncut sho")
    with pytest.raises(InputError, match="cut short"):
        append_lines(path, ["next"])
    assert path.read_text() == "one\ncut sho"


def test_a_full_disk_leaves_a_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_lines(path, ["one"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Room for three bytes more.
    resource.setrlimit(resource.RLIMIT_FSIZE, (7, hard))
    try:
        with pytest.raises(GnnhpcError, match="nothing added"):
            append_lines(path, ["two", "three"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "one\n"


def test_a_disk_without_room_for_the_manifest_leaves_no_run(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (7, hard))
    try:
        with pytest.raises(GnnhpcError, match="run: File too large, nothing submitted"):
            make(tmp_path, planned())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_only_one_changes_a_run_at_a_time(tmp_path: Path) -> None:
    paths = make(tmp_path, planned())
    seen = []

    def change(number: int) -> None:
        with run_lock(paths):
            seen.append(number)
            seen.append(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, range(50)))
    assert seen[::2] == seen[1::2]


def test_submissions_are_read_as_they_were_noted(tmp_path: Path) -> None:
    paths = make(tmp_path, planned())
    record_submission(paths, "slurm", "gat-seq", [0, 2, 3], "17", Launch())
    record_submission(paths, "local", "gat-pp2", [0], str(os.getppid()), Launch())
    slurm, local = read_submissions(paths)
    assert (slurm.job_id, slurm.index_list()) == ("17", [0, 2, 3])
    assert not supervisor_is_alive(slurm)
    assert supervisor_is_alive(local)
    assert not supervisor_is_alive(dataclasses.replace(local, started=1))


@pytest.mark.parametrize("line", ["{", "3", "{}", '{"version": 2}', '{"version": 1, "x": 0}'])
def test_damaged_submissions_are_named(line: str, tmp_path: Path) -> None:
    paths = make(tmp_path, planned())
    paths.submissions.write_text(line + "\n")
    with pytest.raises(InputError, match=r"submissions.jsonl:1: "):
        read_submissions(paths)


def test_a_run_can_be_opened_by_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, planned())
    monkeypatch.chdir(tmp_path)
    assert open_run("run").root == tmp_path / "run"
