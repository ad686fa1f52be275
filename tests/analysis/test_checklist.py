"""The answers of `gnnhpc check`, and its exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.cli import main
from analysis.report.checklist import check_run
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.schema import Check
from tests.analysis.conftest import GOLDEN, experiments_of
from tests.tools.make_run import Story, make_run, rewrite_result

FAILED = Check("labels", "invalid", "3 differ")
UNKNOWN = Check("parity", "inconclusive", "dropout")
NOISY = Check("noisy", "suspect", "stolen")


def wrong(root: Path, repeats: int = 3) -> dict[str, str]:
    """The lines of questions that are not ok."""
    return {one.question: one.line for one in check_run(root, repeats) if not one.ok}


@pytest.mark.parametrize("name", list(GOLDEN))
def test_a_golden_run_lacks_code_commit_and_data_alone(
    folders: dict[str, Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = wrong(folders[name]).keys() - {"data are as recorded"}
    assert lacking == {
        "the code that ran is in the run folder, unchanged",
        "submitted from a clean commit",
    }
    assert main(["check", str(folders[name])]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("of 11 ok")


def test_what_is_wrong_with_one_cell_is_an_answer(tmp_path: Path) -> None:
    experiments = experiments_of("chunks", repeats=1)
    fates = [
        (Story(), "records are as written, and agree"),
        (Story(status="failed", stop_at=2), "all cells done"),
        (Story(audit=(FAILED,)), "all cells valid"),
        (Story(audit=(UNKNOWN,)), "every cell was validated, and could be compared"),
        (
            Story(header={"cpu_model": "Other CPU"}),
            "compared cells have equal code, versions, CPU, threads and kernels",
        ),
        (Story(audit=(NOISY,)), "no flags"),
    ]
    by_cell = {one.id: [story] for one, (story, _) in zip(experiments, fates, strict=True)}
    root = make_run(tmp_path / "run", experiments, stories=by_cell)
    result = RunPaths(root).cell(experiments[0].id).attempt(1).result
    rewrite_result(result, lambda raw: raw.update(train_steps=1))
    found = wrong(root, 2)
    questions = {question for _, question in fates}
    assert {*questions, "2 repeats or more of each configuration"} <= found.keys()
    contradicted = found["records are as written, and agree"]
    assert experiments[0].id in contradicted and "step counts" in contradicted
