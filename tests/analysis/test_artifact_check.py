"""`check`: a whole run passes every question, and each defect is one answer that is not ok."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.artifact.check_run import QUESTIONS, check_run
from analysis.cli import main
from analysis.loading.run import load
from gnnhpc.data.commands.checksums import write_checksums
from gnnhpc.data.published import PublishedGraph
from gnnhpc.data.settings import SyntheticCitation
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.gat import Gat
from gnnhpc.records.code_snapshot import PACKAGES, CodeSnapshot, file_digests
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Check
from tests.tools.make_run import Story, make_run
from tests.tools.result_files import rewrite_result

CODE = "c0de"
VERSIONS = {"python": "3.11.7", "torch": "2.13.0"}
PASSED = tuple(Check(name, "ok", "") for name in ("self-check", "final-check"))


def sweep(**changes: Any) -> list[Experiment]:
    fields = {
        "model": Gat(),
        "data": SyntheticCitation(),
        "chunks": "halo",
        "train_steps": 8,
        "test_steps": 6,
    }
    return [
        Experiment.model_validate(
            fields | {"layout": layout, "microbatches": m, "repeat": repeat} | changes
        )
        for repeat in range(3)
        for layout, m in (("seq", 1), ("pp2", 2))
    ]


def whole_run(root: Path, experiments: list[Experiment] | None = None) -> Path:
    """A run as a submission and its ranks leave it: code, commit, versions, digests."""
    experiments = sweep() if experiments is None else experiments
    header = {"code": CODE, "code_from": "snapshot", "versions": VERSIONS}
    story = Story(audit=PASSED, header=header)
    make_run(root, experiments, stories={one.id: [story] for one in experiments})
    paths = RunPaths(root)
    for package in PACKAGES:
        (paths.code / package).mkdir(parents=True)
        (paths.code / package / "core.py").write_text("pass\n")
    CodeSnapshot(CODE, "1" * 40, "/home/me/gnnhpc", file_digests(paths.code)).write(
        paths.code_record
    )
    facts = {"commit": "1" * 40, "created_at": "2026-03-01", "user": "me", "versions": VERSIONS}
    change(paths.provenance, lambda found: found.update(facts))
    for result in root.rglob("result.json"):
        rewrite_result(result, lambda found, folder=result.parent: complete(found, folder))
    return root


def change(path: Path, how: Callable[[dict[str, Any]], Any]) -> None:
    found = json.loads(path.read_text())
    how(found)
    path.write_text(json.dumps(found))


def complete(result: dict[str, Any], folder: Path) -> None:
    """Digests of the rank files, and the last losses and metrics that these have."""
    result["provenance"] = {"versions": VERSIONS}
    for path in sorted(folder.glob("rank-*.jsonl")):
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        result["records"][path.name] = {"size": len(content), "sha256": digest}
        for line in map(json.loads, content.splitlines()):
            if line.get("loss") is not None:
                for name, value in {"loss": line["loss"], **line["metrics"]}.items():
                    of_split = name.startswith(("val_", "test_"))
                    if not (of_split and line["phase"] == "train"):
                        key = name if of_split else f"{line['phase']}_{name}"
                        result["final"][key] = value


def edit_results(root: Path, how: Callable[[dict[str, Any]], Any], most: int = 99) -> None:
    """As if they had been written so."""
    for path in sorted(root.rglob("result.json"))[:most]:
        rewrite_result(path, how)


def edit_headers(root: Path, **fields: Any) -> None:
    """Of the first cell; with digests that fit."""
    result = sorted(root.rglob("result.json"))[0]
    for path in result.parent.glob("rank-*.jsonl"):
        first, rest = path.read_text().split("\n", 1)
        path.write_text(json.dumps(json.loads(first) | fields) + "\n" + rest)
    rewrite_result(result, lambda found: complete(found, result.parent))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("runs") / "whole")


def wrong(root: Path, **options: Any) -> dict[str, str]:
    return {found.question: found.detail for found in check_run(root, **options) if not found.ok}


def test_a_whole_run_passes_every_question(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(whole)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(QUESTIONS) + 1
    assert lines[-1] == f"{len(QUESTIONS)} of {len(QUESTIONS)} ok"
    assert all(line.startswith("ok ") for line in lines[:-1])


def flag(result: dict[str, Any]) -> None:
    result["audit"].append({"name": "noisy", "verdict": "suspect", "detail": "x", "values": {}})


def fail(result: dict[str, Any]) -> None:
    result["audit"].append({"name": "order", "verdict": "invalid", "detail": "x", "values": {}})


def unchecked(result: dict[str, Any]) -> None:
    result["audit"] = [check for check in result["audit"] if check["name"] != "final-check"]


def another_attempt(root: Path) -> None:
    attempt = next((root / "cells").iterdir()) / "attempt-1"
    again = shutil.copytree(attempt, attempt.with_name("attempt-2"))
    for path in again.glob("rank-*.jsonl"):
        path.write_text(path.read_text().replace('"attempt": 1', '"attempt": 2'))
    rewrite_result(again / "result.json", lambda found: found.update(attempt=2))
    rewrite_result(again / "result.json", lambda found: complete(found, again))


DEFECTS: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "a flag": (lambda root: edit_results(root, flag, 1), {"no flags"}),
    "an invalid cell": (
        lambda root: edit_results(root, fail, 1),
        {"all cells valid", "no flags", "3 repeats or more of each configuration"},
    ),
    "a missing cell": (
        lambda root: shutil.rmtree(next((root / "cells").iterdir())),
        {"all cells done", "all cells valid", "3 repeats or more of each configuration"},
    ),
    "no self-check at the end": (
        lambda root: edit_results(root, unchecked, 1),
        {"self-checks passed"},
    ),
    "results without digests": (
        lambda root: edit_results(root, lambda found: found.update(records={})),
        {"records are whole, as their digests say"},
    ),
    "other versions in one cell": (
        lambda root: edit_results(
            root, lambda found: found["provenance"].update(versions={"python": "3.12"}), 1
        ),
        {"versions recorded, and the same in all cells"},
    ),
    "edits that no commit has": (
        lambda root: change(
            root / "provenance.json", lambda f: f.update(commit="1" * 40 + "+dirty")
        ),
        {"submitted from a clean commit"},
    ),
    "no provenance": (
        lambda root: (root / "provenance.json").unlink(),
        {"submitted from a clean commit", "how it was submitted is recorded"},
    ),
    "the kept code edited": (
        lambda root: (root / "code/gnnhpc/core.py").write_text("edited"),
        {"the code that ran is in the run folder, unchanged"},
    ),
    "a cell that ran live code": (
        lambda root: edit_headers(root, code_from="live"),
        {"the code that ran is in the run folder, unchanged"},
    ),
    "a cell on another CPU": (
        lambda root: edit_headers(root, cpu_model="Other CPU"),
        {
            "one machine type",
            "cells that are compared are alike in code, versions, CPU, threads and kernels",
            "no flags",
            "3 repeats or more of each configuration",
        },
    ),
    "a valid measurement made again": (
        another_attempt,
        {"no valid measurement was replaced by a later one"},
    ),
}


def test_a_job_that_measured_its_cell_twice_made_no_choice(whole: Path, tmp_path: Path) -> None:
    """As jobs did that were requeued after their result, before they looked for it."""
    root = shutil.copytree(whole, tmp_path / "run")
    another_attempt(root)
    task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURM_CLUSTER_NAME": "lab"}
    edit_results(root, lambda found: found["provenance"].update(slurm=task))
    assert wrong(root) == {}
    again = load(root).attempts.query("job == '7_0 of lab'")
    assert len(again) == len(load(root).attempts)


def test_attempts_of_this_machine_are_of_no_job(whole: Path, tmp_path: Path) -> None:
    """Beside others that are of one, as in a run that was rerun in both ways."""
    root = shutil.copytree(whole, tmp_path / "run")
    another_attempt(root)
    replaced = load(root).attempts.query("valid and not used")["cell"].iloc[0]
    task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}
    edit_results(
        root,
        lambda found: found["provenance"].update(slurm={} if found["cell"] == replaced else task),
    )
    jobs = load(root).attempts["job"]
    assert set(jobs.notna()) == {False, True}
    assert "no valid measurement was replaced by a later one" in wrong(root)


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_is_answered_by_its_own_questions(
    whole: Path, tmp_path: Path, defect: str
) -> None:
    root = shutil.copytree(whole, tmp_path / "run")
    plant, questions = DEFECTS[defect]
    plant(root)
    assert set(wrong(root)) == questions
    assert main(["check", str(root)]) == 1


def test_a_damaged_cell_is_named_with_its_file(whole: Path, tmp_path: Path) -> None:
    root = shutil.copytree(whole, tmp_path / "run")
    path = sorted(root.rglob("rank-0000.jsonl"))[0]
    path.write_text(path.read_text().replace('"epoch": 0', '"epoch": 1', 1))
    assert "rank-0000.jsonl" in wrong(root)["records are whole, as their digests say"]


def test_downloaded_data_are_held_against_their_digests(tmp_path: Path) -> None:
    data = PublishedGraph(name="cora")
    root = whole_run(tmp_path / "run", sweep(data=data))
    question = "data are as recorded"
    assert "--data-root" in wrong(root)[question]
    lies = tmp_path / "data"
    files = data.files(lies)
    assert files is not None
    sums = {}
    for name in files.names:
        path = files.directory(lies) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        sums[name] = hashlib.sha256(name.encode()).hexdigest()
    assert "no digests" in wrong(root, data_root=lies)[question]
    write_checksums(files.directory(lies), sums)
    assert question not in wrong(root, data_root=lies)
    path.write_text("changed")
    assert f"{name} in" in wrong(root, data_root=lies)[question]


def test_fewer_repeats_than_asked_for_and_few_steps(whole: Path, tmp_path: Path) -> None:
    assert set(wrong(whole, repeats=4)) == {"4 repeats or more of each configuration"}
    short = whole_run(tmp_path / "short", sweep(train_steps=3, test_steps=3, warmup_steps=2))
    assert set(wrong(short)) == {"5 steps or more after warm-up in each configuration and phase"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["{tmp}/none"], "no such folder"), (["{run}", "--repeats", "0"], "--repeats")],
)
def test_wrong_input_is_one_line_and_status_2(
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    places = {"{tmp}": str(tmp_path), "{run}": str(whole)}
    for key, value in places.items():
        arguments = [argument.replace(key, value) for argument in arguments]
    assert main(["check", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert says in captured.err
