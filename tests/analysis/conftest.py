"""Golden runs, written once a session and read by many tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.load.run_data import RunData, load_run
from tests.tools.make_run import Machine, make_run, small_sweep


@pytest.fixture(scope="session")
def sweep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both models in four layouts, three repeats, with spans."""
    root = tmp_path_factory.mktemp("golden") / "sweep"
    experiments = small_sweep(3, spans=True, train_steps=24, test_steps=6)
    return make_run(root, experiments, machine=Machine(runs_differ=0.01))


@pytest.fixture(scope="session")
def sweep(sweep_folder: Path) -> RunData:
    return load_run(sweep_folder)
