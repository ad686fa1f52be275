"""Three golden runs, written once a session and read by many tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.load.run_data import RunData, load_run
from analysis.report.report import write_report
from analysis.summary.summary_table import summarize
from gnnhpc.experiment.experiment import Experiment
from tests.tools.made_steps import Machine
from tests.tools.make_run import make_run

STEPS = {"train_steps": 24, "test_steps": 6, "spans": True}
VIG: dict[str, Any] = {
    "model": {"name": "vig"},
    "data": {"name": "cifar10"},
    "batch_size": 100,
    **STEPS,
}
GAT: dict[str, Any] = {
    "model": {"name": "gat"},
    "data": {"name": "cora"},
    "chunks": "halo",
    **STEPS,
}
SAGE: dict[str, Any] = {
    "model": {"name": "sage"},
    "data": {"name": "reddit-shaped"},
    "sampling": {"fanouts": [10, 5]},
    "batch_size": 512,
    "train_steps": 24,
    "test_steps": 8,
}
_IMAGES: list[dict[str, Any]] = [
    {},
    {"microbatches": 5},
    {"layout": "pp2", "microbatches": 5},
    {"layout": "pp2", "microbatches": 5, "schedule": "1f1b"},
    {"layout": "pp2", "microbatches": 5, "schedule": "zero-bubble"},
    {
        "layout": "pp2",
        "microbatches": 4,
        "batch_size": 96,
        "schedule": "interleaved",
        "virtual_stages": 2,
    },
    {"layout": "pp4", "microbatches": 5},
    {"layout": "dp2-pp2", "microbatches": 5},
]
"""ViG in layouts and schedules. The interleaved ones have a batch size that no other cell has."""
_CHUNKS: list[dict[str, Any]] = [
    {},
    {"microbatches": 4},
    {"microbatches": 4, "chunks": "contiguous"},
    {"layout": "pp2", "microbatches": 4},
    {"layout": "dp2", "microbatches": 2},
    {"model": {"name": "gat", "implementation": "pyg"}},
]
_SAMPLED: list[dict[str, Any]] = [
    {},
    {"layout": "dp2", "batch_size": 256},
    {
        "model": {"name": "sage", "implementation": "pyg"},
        "sampling": {"fanouts": [10, 5], "sampler": "pyg", "workers": 1},
    },
]
_COSTS = {"images": 5e-11, "chunks": 2e-10, "sampled": 1e-11}
"""Seconds of a unit of cost in each run."""
GOLDEN = {"images": (VIG, _IMAGES), "chunks": (GAT, _CHUNKS), "sampled": (SAGE, _SAMPLED)}


def experiments_of(name: str, repeats: int = 3) -> list[Experiment]:
    """The experiments of a golden run."""
    base, changes = GOLDEN[name]
    return [
        Experiment.model_validate(base | change | {"repeat": repeat})
        for repeat in range(repeats)
        for change in changes
    ]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run folders, by name."""
    root = tmp_path_factory.mktemp("golden")
    return {
        name: make_run(
            root / name,
            experiments_of(name),
            machine=Machine(runs_differ=0.01, seconds_a_unit=_COSTS[name]),
        )
        for name in GOLDEN
    }


@pytest.fixture(scope="session")
def runs(folders: dict[str, Path]) -> dict[str, RunData]:
    return {name: load_run(folder) for name, folder in folders.items()}


@pytest.fixture(scope="session")
def summaries(runs: dict[str, RunData]) -> dict[str, pd.DataFrame]:
    return {name: summarize(run).table for name, run in runs.items()}


@pytest.fixture(scope="session")
def images(runs: dict[str, RunData]) -> RunData:
    return runs["images"]


@pytest.fixture(scope="session")
def reports(folders: dict[str, Path]) -> dict[str, Path]:
    """The report folder of each golden run."""
    return {name: write_report([folder])[1] for name, folder in folders.items()}
