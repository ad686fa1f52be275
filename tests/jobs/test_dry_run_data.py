"""A dry run and data: none are needed, those that are missing are named; own graphs are planned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jobs.cli import main
from jobs.spec.planning import plan
from tests.tools.data_files import own_arrays

SPEC = """
name: sweep
defaults: {train_steps: 3}
grids:
  - {models: [gat], data: [cora, synthetic-citation, {name: photo, features: made}], layouts: [seq]}
"""
OWN = """
name: own
grids:
  - {models: [gat], data: [{name: file, path: graphs/mine.npz}], layouts: [seq, pp2]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; no data anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GNNHPC_DATA", raising=False)
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_missing_data_are_named_with_the_command_that_gets_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "spec.yaml").write_text(SPEC)
    assert main(["submit", "spec.yaml", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "data missing: cora photo; get them with: gnnhpc data get cora photo\n" in out
    assert "would write" in out
    assert out.count("#SBATCH --array") == 1
    assert sorted(path.name for path in folder.iterdir()) == ["spec.yaml"]
    assert main(["submit", "spec.yaml", "--cluster", "local"]) == 2
    assert "data cora: data root: found none" in capsys.readouterr().err


def test_a_named_root_stays_in_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "root").mkdir()
    assert main(["submit", "spec.yaml", "--dry-run", "--data-root", "root"]) == 0
    expected = f"gnnhpc data get cora photo --data-root {folder}/root\n"
    assert expected in capsys.readouterr().out


def test_nothing_is_said_where_nothing_is_missing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "spec.yaml").write_text(SPEC)
    arguments = ["submit", "spec.yaml", "--dry-run", "--set", "data=synthetic-citation"]
    assert main(arguments) == 0
    assert "data missing" not in capsys.readouterr().out


def test_an_own_graph_is_seen_from_the_folder_of_the_spec(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sweeps" / "graphs").mkdir(parents=True)
    (folder / "sweeps" / "own.yaml").write_text(OWN)
    np.savez(folder / "sweeps" / "graphs" / "mine.npz", **own_arrays())
    cells = plan("sweeps/own.yaml").cells
    assert {cell.experiment.data.facts().nodes for cell in cells} == {60}
    assert all(cell.id.startswith("gat-mine-") for cell in cells)
    assert {cell.array for cell in cells} == {"gat-seq", "gat-pp2"}


def test_a_mistake_in_an_own_graph_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "own.yaml").write_text(OWN)
    assert main(["submit", "own.yaml", "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert err == (
        f"error: own.yaml: grids.0.data: {folder}/graphs/mine.npz: found no such file; "
        "allowed: a file written by numpy.savez\n"
    )
