"""A sweep of one's own model and graph here: every layout, verified, reported, and run again."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from analysis.cli import main as analysis
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.result_file import Result
from gnnhpc.validation.verify import verify_manifest
from jobs.cli import main
from jobs.submit.submission import Options
from jobs.submit.submit import submit
from jobs.sweep.plan import plan

pytestmark = pytest.mark.distributed

EXAMPLE = Path(__file__).parents[2] / "jobs" / "sweeps" / "own-model"
SMALL = ["repeats=1", "train_steps=4", "seq_microbatches=[2]", "models.layers=2"]


@pytest.mark.slow
def test_the_example_runs_verifies_reports_and_runs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    shutil.copytree(EXAMPLE, mine)
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    planned = plan(mine / "own-model.yaml", SMALL)
    done = submit(planned, Options(cluster="local", wait=True), runs="runs")
    paths = RunPaths(done.run)
    assert done.failed == 0
    cells = read_manifest(paths.manifest)
    assert [cell.array for cell in cells] == [
        f"deep_gcn.DeepGcn-{layout}" for layout in ("seq", "pp2", "dp2-pp2")
    ]
    for cell in cells:
        result = Result.read(paths.cell(cell.id).attempt(1).result)
        assert result.valid
        assert result.experiment["model"]["name"] == "deep_gcn:DeepGcn"

    assert verify_manifest(paths.manifest, 2) == 0
    assert "PASSED" in capsys.readouterr().out

    # Neither looks at the user's file, and a rerun takes the one that was kept.
    (mine / "deep_gcn.py").unlink()
    for name in ("deep_gcn",):
        sys.modules.pop(name, None)
    assert main(["status", str(done.run), "--json"]) == 0
    assert [cell["state"] for cell in json.loads(capsys.readouterr().out)["cells"]] == ["done"] * 3
    assert analysis(["report", str(done.run)]) == 0
    assert "deep_gcn.DeepGcn" in (paths.report / "summary.csv").read_text()
    assert "deep_gcn" not in sys.modules
    again = ["rerun", str(done.run), "--array", "deep_gcn.DeepGcn-pp2", "--index", "0"]
    assert main([*again, "--wait"]) == 0
    first, second = (
        Result.read(paths.cell(cells[1].id).attempt(number).result) for number in (1, 2)
    )
    assert second.valid
    assert second.final["train_loss"] == first.final["train_loss"]
