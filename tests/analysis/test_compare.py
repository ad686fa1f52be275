"""Comparing two runs: what became slower, by how much, and in which layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.cli import main
from gnnhpc.experiment.experiment import Experiment
from tests.analysis.conftest import VIG
from tests.tools.made_steps import Machine
from tests.tools.make_run import make_run

FASTER_MACHINE = Machine(runs_differ=0.002)


def experiments(repeats: int = 5) -> list[Experiment]:
    return [
        Experiment.model_validate(VIG | change | {"repeat": repeat, "spans": False})
        for repeat in range(repeats)
        for change in ({}, {"layout": "pp2", "microbatches": 5})
    ]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared") / "before"
    return make_run(folder, experiments(), machine=FASTER_MACHINE, seed=1)


@pytest.mark.parametrize(
    ("machine", "status", "words"),
    [
        (Machine(runs_differ=0.002), 0, "nothing shown to be slower"),
        (Machine(runs_differ=0.002, pace=lambda _: 1.2), 1, "SLOWER: 4 step times"),
        (Machine(runs_differ=0.002, pace=lambda _: 0.8), 0, "nothing shown to be slower"),
        (Machine(runs_differ=0.002, slower={"block3": 1.3}), 1, "layer groups"),
    ],
)
def test_what_became_slower_decides_the_status(
    before: Path,
    tmp_path: Path,
    machine: Machine,
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    after = make_run(tmp_path / "after", experiments(), machine=machine, seed=2)
    assert main(["compare", str(before), str(after)]) == status
    assert words in capsys.readouterr().out


def test_the_slower_layer_is_named(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(runs_differ=0.002, slower={"block3": 1.3})
    after = make_run(tmp_path / "after", experiments(), machine=machine, seed=2)
    out = tmp_path / "tables"
    assert main(["compare", str(before), str(after), "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    slower = [line for line in printed.splitlines() if line.startswith("layer groups slower")]
    assert slower and all("block3" in line and "block2" not in line for line in slower)
    groups = pd.read_csv(out / "compare_groups.csv")
    named = groups[groups.astype(str).apply(lambda row: "block3" in " ".join(row), axis=1)]
    assert len(named) and len(named) < len(groups)


def test_a_tolerance_above_the_change_is_not_exceeded(before: Path, tmp_path: Path) -> None:
    machine = Machine(runs_differ=0.002, pace=lambda _: 1.1)
    after = make_run(tmp_path / "after", experiments(), machine=machine, seed=2)
    assert main(["compare", str(before), str(after), "--tolerance", "0.25"]) == 0


def test_single_runs_give_no_verdict(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(pace=lambda _: 2.0)
    after = make_run(tmp_path / "after", experiments(1), machine=machine, seed=2)
    assert main(["compare", str(before), str(after)]) == 0
    assert "no verdict" in capsys.readouterr().out


@pytest.mark.parametrize("tolerance", ["-1", "nan", "much"])
def test_a_tolerance_that_is_none_is_refused(before: Path, tolerance: str) -> None:
    assert main(["compare", str(before), str(before), f"--tolerance={tolerance}"]) == 2


def test_runs_without_a_common_configuration_name_the_settings_that_differ(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others: list[dict[str, Any]] = [
        {"batch_size": 50, "optimizer": {"clip_norm": 1.0}},
        {"batch_size": 25, "layout": "pp2", "microbatches": 5, "dtype": "float64"},
    ]
    experiments = [Experiment.model_validate(VIG | {"spans": False} | other) for other in others]
    after = make_run(tmp_path / "after", experiments)
    assert main(["compare", str(before), str(after)]) == 2
    error = capsys.readouterr().err
    assert "batch_size (100 in A, 50 in B), optimizer_clip_norm (none in A, 1 in B)" in error
    assert main(["compare", str(after), str(before)]) == 2
    assert "optimizer_clip_norm (1 in A, none in B)" in capsys.readouterr().err


def test_no_difference_shown_says_how_many_repeats_would_show_one(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = make_run(tmp_path / "after", experiments(), machine=Machine(runs_differ=0.05), seed=2)
    main(["compare", str(before), str(after)])
    assert "repeats would show a 5% difference" in capsys.readouterr().out.replace("\n", " ")
