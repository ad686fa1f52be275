"""`export`: what of a run other programs get, read back by those that are installed here."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.cli import main
from analysis.foreign.export_run import TARGETS, export_run
from analysis.foreign.exported_cells import ExportedCell, Scalar, exported_cells
from analysis.foreign.mlflow_store import name_in_mlflow
from analysis.loading.run import load
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.schema import Check
from tests.tools.make_run import Story, make_run, small_sweep

EXPERIMENTS = [one for one in small_sweep(repeats=1) if one.layout.world_size < 4]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """ViG and GAT in one process and in two stages; the last cell is invalid."""
    stories = {EXPERIMENTS[-1].id: [Story(audit=(Check("edges", "invalid", "lost"),))]}
    return make_run(tmp_path / "made", EXPERIMENTS, stories=stories)


def series(cell: ExportedCell, name: str) -> dict[int, float]:
    return {one.step: one.value for one in cell.scalars if one.name == name}


def test_valid_cells_are_exported_with_every_step(run: Path) -> None:
    loaded = load(run)
    cells = exported_cells(loaded)
    assert [cell.cell for cell in cells] == [
        cell.id for cell in read_manifest(run / "manifest.jsonl")
    ][:-1]
    for cell in cells:
        mine = loaded.steps[loaded.steps["cell"] == cell.cell]
        for phase in ("train", "test"):
            rows = mine[mine["phase"] == phase]
            for name, column in (("step_s", "wall_s"), ("loss", "loss")):
                expected = dict(zip(rows["step"], rows[column], strict=True))
                assert series(cell, f"{phase}/{name}") == expected
                assert expected


def test_each_model_has_its_own_settings_and_metrics(run: Path) -> None:
    cells = exported_cells(load(run))
    vig = next(cell for cell in cells if cell.settings["model"] == "vig")
    gat = next(cell for cell in cells if cell.settings["model"] == "gat")
    assert (vig.settings["layout"], vig.settings["batch_size"]) == ("seq", 100)
    assert "model_heads" not in vig.settings
    assert gat.settings["model_heads"] == 8
    assert isinstance(gat.settings["model_heads"], int)
    assert gat.settings["optimizer_lr"] == 1e-3
    assert (gat.settings["seed"], gat.settings["repeat"]) == (0, 0)
    assert series(vig, "train/accuracy")
    assert not series(vig, "train/val_accuracy")
    assert series(gat, "train/val_accuracy")


def test_times_go_on_from_the_cells_start(run: Path) -> None:
    cell = exported_cells(load(run))[0]
    times = [one.at for one in cell.scalars if one.name == "train/step_s"]
    seconds = series(cell, "train/step_s")
    assert times == sorted(times)
    # 2026-03-01T09:00:00+00:00, and waiting for data of 0.1 ms a step.
    assert times[0] == pytest.approx(1772355600 + seconds[0] + 1e-4)
    assert times[2] - times[1] == pytest.approx(seconds[2] + 1e-4)


def test_another_program_is_refused(run: Path) -> None:
    with pytest.raises(InputError, match="--to: found 'wandb'; allowed: tensorboard or mlflow"):
        export_run(run, "wandb")


@pytest.mark.parametrize("to", TARGETS)
def test_a_missing_package_is_one_line_with_its_extra(
    to: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("analysis.foreign.export_run.find_spec", lambda name: None)
    assert main(["export", str(run), "--to", to]) == 2
    assert capsys.readouterr().err == (
        f"error: --to: found {to}, whose package is not installed here; allowed: pip install "
        f"'gnnhpc[{to}]', or '.[{to}]'\n"
    )
    assert not (run / "export").exists()


@pytest.mark.parametrize("to", TARGETS)
def test_a_package_without_its_parts_is_one_line_too(
    to: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.foreign.export_run.find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, to, None)
    with pytest.raises(InputError, match=rf"whose {to}\S* is not installed here; allowed: pip"):
        export_run(run, to)


@pytest.mark.parametrize("to", TARGETS)
def test_the_package_is_not_needed_for_the_other_commands(to: str, run: Path) -> None:
    code = (
        f"import sys; sys.modules[{to!r}] = None; from analysis.cli import main; "
        f"sys.exit(main(['check', {str(run)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr


def test_a_run_without_a_valid_cell_has_nothing_to_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = {EXPERIMENTS[0].id: [Story(status="failed", stop_at=2)]}
    run = make_run(tmp_path / "made", EXPERIMENTS[:1], stories=stories)
    monkeypatch.setattr("analysis.foreign.export_run.find_spec", lambda name: object())
    with pytest.raises(InputError, match="no valid cell"):
        export_run(run, "tensorboard")


def needs(package: str) -> pytest.MarkDecorator:
    found = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not found, reason=f"{package} is not installed here")


def expected_series(cell: ExportedCell) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[Scalar]] = {}
    for one in cell.scalars:
        found.setdefault(one.name, []).append(one)
    return {name: [(one.step, one.value) for one in some] for name, some in found.items()}


@needs("tensorboard")
def test_tensorboard_reads_what_was_exported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # the second replaces the first
        assert main(["export", str(run), "--to", "tensorboard"]) == 0
    said = capsys.readouterr().out.splitlines()
    folder = run / "export/tensorboard"
    cells = exported_cells(load(run))
    assert said[-2:] == [
        f"tensorboard: {folder}, {len(cells)} cells",
        "left out: 1 cells that are not valid",
    ]
    assert sorted(path.name for path in folder.iterdir()) == sorted(cell.cell for cell in cells)
    for cell in cells:
        events = EventAccumulator(str(folder / cell.cell), {"scalars": 0})
        events.Reload()
        wanted = expected_series(cell)
        assert set(events.Tags()["scalars"]) == wanted.keys()
        for name, values in wanted.items():
            read = [(one.step, one.value) for one in events.Scalars(name)]
            # Event files hold single precision.
            assert read == [(step, pytest.approx(value, rel=1e-6)) for step, value in values]


def test_names_of_metrics_are_such_as_mlflow_takes() -> None:
    """Slashes, alphanumerics, underscores, periods, dashes and spaces."""
    assert name_in_mlflow("test/test_hits@10") == "test/test_hits_at_10"
    for name in ("train/loss", "test/val_auc", "test/test_hits@3"):
        assert re.fullmatch(r"[/\w.\- ]+", name_in_mlflow(name))


@needs("mlflow")
def test_mlflow_reads_what_was_exported(run: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    out = tmp_path / "store"
    cells = exported_cells(load(run))
    assert export_run(run, "mlflow", out)[:2] == (len(cells), len(cells) + 1)
    client: Any = MlflowClient(tracking_uri=f"sqlite:///{out}/mlflow.db")
    experiment = client.get_experiment_by_name("made")
    found = {one.info.run_name: one for one in client.search_runs([experiment.experiment_id])}
    assert found.keys() == {cell.cell for cell in cells}
    for cell in cells:
        one = found[cell.cell]
        assert one.data.params == {name: str(value) for name, value in cell.settings.items()}
        assert one.info.status == "FINISHED"
        for name, values in expected_series(cell).items():
            history = client.get_metric_history(one.info.run_id, name_in_mlflow(name))
            assert sorted((each.step, each.value) for each in history) == values
    with pytest.raises(InputError, match="with an experiment made; allowed: another folder"):
        export_run(run, "mlflow", out)
