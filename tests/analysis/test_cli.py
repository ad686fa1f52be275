"""The commands: what they write, print and refuse, and what they never import."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis.cli import main
from analysis.render.pages import atomic_output_folder
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.data.data_settings import SyntheticCifar10
from gnnhpc.data.published_graphs import PublishedGraph
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.gat import Gat
from gnnhpc.models.vig.model import Vig
from tests.tools.make_run import Story, make_run


def cells() -> list[Experiment]:
    steps = {"train_steps": 8, "test_steps": 2}
    vig = {
        "model": Vig(),
        "data": SyntheticCifar10(image_size=8),
        "batch_size": 10,
        **steps,
    }
    gat = {"model": Gat(), "data": PublishedGraph(name="cora"), **steps}
    return [
        Experiment.model_validate(vig),
        Experiment.model_validate(vig | {"layout": "pp2", "microbatches": 5, "spans": True}),
        Experiment.model_validate(gat | {"layout": "pp2", "microbatches": 2}),
        Experiment.model_validate(vig | {"repeat": 1}),
    ]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one failed cell, reported once."""
    experiments = cells()
    stories = {experiments[3].id: [Story(status="failed", stop_at=3)]}
    root = make_run(tmp_path_factory.mktemp("runs") / "a run", experiments, stories=stories)
    assert main(["report", str(root)]) == 0
    return root


def test_steps_of_failed_cells_are_kept_and_nothing_temporary(reported: Path) -> None:
    report = reported / "report"
    assert len(pd.read_csv(report / "summary.csv")) == 6
    assert len(pd.read_parquet(report / "steps.parquet")) == 3 * 10 + 3
    assert not list(reported.glob(".report*"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report", "{tmp}/none"], "no such folder"),
        (["report", "{tmp}"], "manifest.jsonl"),
        (["report", "{run}", "--baseline", "pp2x"], "--baseline"),
        (["report", "{run}", "--baseline", "pp9"], "found pp9:1, which no cell has; allowed: seq"),
        (["report", "{run}", "--baseline", "pp2:7", "--only", "speedup"], "found pp2:7, which no"),
        (["report", "{run}", "--out", "{run}/manifest.jsonl"], "which is a file"),
        (["report", "{run}", "--out", "/proc/nowhere/report"], "a folder you may write in"),
        (["reprot", "{run}"], "report"),
        (["report"], "RUN"),
        (["report", "{run}", "--colour"], "--colour"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    reported: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    places = {"{tmp}": str(tmp_path), "{run}": str(reported)}
    for key, value in places.items():
        arguments = [argument.replace(key, value) for argument in arguments]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert not list(tmp_path.iterdir())


def test_a_report_over_a_layout_that_is_not_there_leaves_an_older_one_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_run(tmp_path / "run", cells()[:1])
    report = root / "report"
    report.mkdir()
    (report / "summary.csv").write_text("as it was")
    assert main(["report", str(root), "--baseline", "pp9"]) == 2
    assert "; allowed: " in capsys.readouterr().err
    assert [path.name for path in report.iterdir()] == ["summary.csv"]
    assert (report / "summary.csv").read_text() == "as it was"


def test_a_damaged_cell_is_reported_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_run(tmp_path / "run", cells()[:2])
    records = next(root.glob("cells/*/attempt-1/rank-0000.jsonl"))
    records.write_text(records.read_text().replace('"wall_s"', '"wall', 1))
    # `status`, which reads no records, takes the cell for done.
    assert main(["report", str(root)]) == 1
    printed = capsys.readouterr()
    assert "1 of 2 cells left out; see the report's first page" in printed.out
    assert "rank-0000.jsonl: content: found changed since it was written" in printed.err
    page = (root / "report" / "report.md").read_text()
    assert "rank-0000.jsonl: content: found changed since it was written" in page


def test_a_disk_that_fills_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def fill() -> None:
        with atomic_output_folder(out) as folder:
            (folder / "half").write_text("x")
            raise OSError(28, "No space left on device")

    with pytest.raises(GnnhpcError, match="No space left on device") as raised:
        fill()
    assert not isinstance(raised.value, InputError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_copy_is_reported_elsewhere_without_torch(reported: Path, tmp_path: Path) -> None:
    """In a process of its own: prints the summary, replaces its own files and no others."""
    copy, out = tmp_path / "on a laptop", tmp_path / "report"
    shutil.copytree(reported, copy, ignore=lambda *_: ["report"])
    (out / "tables").mkdir(parents=True)
    for name in ("my notes.md", "summary.csv", "tables/stale.csv"):
        (out / name).write_text("old")
    code = (
        "import sys\n"
        "from analysis.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'pandas', 'pyarrow', 'matplotlib', 'torch', 'numpy', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert main(['report', sys.argv[1], '--out', sys.argv[2]]) == 0\n"
        "assert not {'torch', 'torch_geometric'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(copy), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "1 of 4 cells left out; see the report's first page",
        f"report: {out / 'report.html'}",
    ]
    assert not (copy / "report").exists()
    assert (out / "my notes.md").read_text() == "old"
    assert (out / "summary.csv").read_text() != "old"
    assert not (out / "tables" / "stale.csv").exists()
