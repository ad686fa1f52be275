"""The answers of `gnnhpc check`, and its exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.cli import main
from analysis.report.checklist import Answer, check_run
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.schema import Check
from tests.analysis.conftest import GOLDEN, experiments_of
from tests.tools.make_run import Story, make_run
from tests.tools.result_files import rewrite_result


def answers(root: Path, repeats: int = 3) -> dict[str, Answer]:
    return {answer.question: answer for answer in check_run(root, repeats)}


@pytest.mark.parametrize("name", list(GOLDEN))
def test_a_golden_run_is_ok(folders: dict[str, Path], name: str) -> None:
    found = answers(folders[name])
    for question in (
        "all cells done",
        "all cells valid",
        "records are as written, and agree",
        "every cell was validated",
        "cells that must learn the same do",
        "no flags",
        "3 repeats or more of each configuration",
        "compared cells have equal code, versions, CPU, threads and kernels",
    ):
        assert found[question].ok, found[question].line
    assert not found["the code that ran is in the run folder, unchanged"].ok
    assert not found["submitted from a clean commit"].ok


@pytest.mark.parametrize(
    ("story", "question"),
    [
        (Story(status="failed", stop_at=2), "all cells done"),
        (Story(audit=(Check("labels", "invalid", "3 differ"),)), "all cells valid"),
        (Story(audit=(Check("parity", "inconclusive", "dropout"),)), "every cell was validated"),
        (Story(audit=(Check("noisy", "suspect", "stolen"),)), "no flags"),
        (Story(header={"cpu_model": "Other CPU"}), "one machine type"),
    ],
)
def test_what_is_wrong_with_one_cell_is_an_answer(
    tmp_path: Path, story: Story, question: str
) -> None:
    experiments = experiments_of("chunks", repeats=1)
    root = make_run(tmp_path / "run", experiments, stories={experiments[2].id: [story]})
    answer = answers(root, 1)[question]
    assert not answer.ok
    assert answer.line.startswith("NOT OK")


def test_too_few_repeats_are_an_answer(folders: dict[str, Path]) -> None:
    assert not answers(folders["chunks"], 4)["4 repeats or more of each configuration"].ok


def test_a_result_that_contradicts_its_records_is_found(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", experiments_of("chunks", repeats=1))
    paths = RunPaths(root)
    cell = next(path.name for path in sorted(paths.root.glob("cells/*")))
    result = paths.cell(cell).attempt(1).result
    rewrite_result(result, lambda raw: raw.update(train_steps=1))
    answer = answers(root, 1)["records are as written, and agree"]
    assert not answer.ok
    assert cell in answer.detail and "step counts" in answer.detail


def test_the_command_prints_a_line_a_question(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(folders["images"])]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("ok") and len(lines) == 14
    assert main(["check", str(folders["images"]), "--repeats", "0"]) == 2
