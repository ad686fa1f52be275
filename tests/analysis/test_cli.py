"""The commands: what they write, print and refuse, and what they never import."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from analysis.cli import main
from analysis.render.formats import atomic_output_folder
from gnnhpc.core.errors import GnnhpcError, InputError
from tests.analysis.conftest import experiments_of
from tests.tools.make_run import Story, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two cells, one of which failed in its third step."""
    experiments = experiments_of("chunks", repeats=1)[:2]
    stories = {experiments[1].id: [Story(status="failed", stop_at=3)]}
    return make_run(tmp_path_factory.mktemp("runs") / "a run", experiments, stories=stories)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report", "{tmp}/none"], "no such folder"),
        (["report", "{tmp}"], "manifest.jsonl"),
        (["report", "{run}", "--baseline", "pp2x"], "--baseline"),
        (["report", "{run}", "--baseline", "pp9"], "found pp9, which no cell has; allowed: seq"),
        (["report", "{run}", "--out", "{run}/manifest.jsonl"], "which is a file"),
        (["report", "{run}", "--out", "/proc/nowhere/report"], "a folder you may write in"),
        (["report"], "RUN"),
        (["report", "{run}", "--colour"], "--colour"),
        (["report", "{run}", "--only", "speed"], "allowed: speedup-gat-cora"),
        (["report", "{run}", "--only", "speedups"], "(is speedup meant?)"),
        (["report", "{run}", "--only", "timeline-nothing"], "timeline-CELL"),
        (["report", "{run}", "--only", "speedup", "--width", "84"], "such as 84mm"),
        (["report", "{run}", "--only", "speedup", "--width", "1mm"], "such as 84mm"),
        (["report", "{run}", "--only", "loss", "--out", "/proc/nowhere"], "--out"),
        (["report", "{run}", "--only", "bubble"], "one rank alone, which waits for nobody"),
        (["report", "{run}", "--width", "84mm"], "with --only FIGURE"),
        (["compare", "{run}", "{run}", "--tolerance=nan"], "--tolerance"),
        (["compare", "{run}", "{run}", "--of=mode"], "--of"),
        (["compare", "{run}", "{run}"], "the same folder twice"),
        (["check", "{run}", "--repeats", "0"], "--repeats"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    arguments = [
        each.replace("{tmp}", str(tmp_path)).replace("{run}", str(run)) for each in arguments
    ]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert says in captured.err
    assert not list(tmp_path.iterdir()) and not (run / "report").exists()


def test_a_damaged_cell_is_reported_with_its_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = shutil.copytree(run, tmp_path / "run")
    records = next(root.glob("cells/*-m1-*/attempt-1/rank-0000.jsonl"))
    records.write_text(records.read_text().replace('"wall_s"', '"wall', 1))
    # `status`, which reads no records, takes the cell for done.
    assert main(["report", str(root)]) == 1
    line = "rank-0000.jsonl: content: found changed since it was written"
    assert line in capsys.readouterr().err
    assert line in (root / "report" / "report.md").read_text()


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
def test_a_copy_is_reported_elsewhere_without_torch(run: Path, tmp_path: Path) -> None:
    """In a process of its own: prints the summary, replaces its own files and no others."""
    copy, out = tmp_path / "on a laptop", tmp_path / "report"
    shutil.copytree(run, copy)
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
        "1 of 2 cells left out; see the report's first page",
        f"report: {out / 'report.html'}",
    ]
    assert sorted(path.name for path in out.iterdir()) == [
        *("figures", "my notes.md", "report.html", "report.md", "steps.parquet"),
        *("summary.csv", "tables"),
    ]
    assert not (out / "tables" / "stale.csv").exists()
    # Steps of the failed cell are kept.
    assert set(pd.read_parquet(out / "steps.parquet")["valid"]) == {True, False}
