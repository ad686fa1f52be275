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

SAME = Machine(runs_differ=0.002)


def experiments(repeats: int = 5, **changes: Any) -> list[Experiment]:
    return [
        Experiment.model_validate(VIG | change | changes | {"repeat": repeat, "spans": False})
        for repeat in range(repeats)
        for change in ({}, {"layout": "pp2", "microbatches": 5})
    ]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared") / "before"
    return make_run(folder, experiments(), machine=SAME, seed=1)


@pytest.mark.parametrize(
    ("machine", "options", "status", "words"),
    [
        (SAME, "", 0, "nothing shown to be slower"),
        (Machine(runs_differ=0.05), "", 0, "repeats would show a 5% difference"),
        (Machine(runs_differ=0.002, pace=lambda _: 1.2), "", 1, "SLOWER: 4 step times"),
        (Machine(runs_differ=0.002, pace=lambda _: 1.1), "--tolerance=0.25", 0, "nothing shown"),
        (Machine(runs_differ=0.002, pace=lambda _: 0.8), "--of=median", 0, "nothing shown"),
        (
            *(Machine(runs_differ=0.1, slower={"block3": 1.2}), "", 1),
            "relative to the other layers of the step",
        ),
        # The share of the other layers grew, but not their seconds.
        (Machine(runs_differ=0.002, slower={"block3": 0.5}), "", 0, "nothing shown"),
    ],
)
def test_what_became_slower_decides_the_status(
    before: Path,
    tmp_path: Path,
    machine: Machine,
    options: str,
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    after = make_run(tmp_path / "after", experiments(), machine=machine, seed=2)
    assert main(["compare", str(before), str(after), *options.split()]) == status
    printed = " ".join(capsys.readouterr().out.split())
    assert words in printed
    assert "losses: they agree within rounding in all 10 common cells" in printed


def test_the_slower_layer_is_named(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(runs_differ=0.002, slower={"block3": 1.3})
    after = make_run(tmp_path / "after", experiments(), machine=machine, seed=2)
    out = tmp_path / "tables"
    assert main(["compare", str(before), str(after), "--out", str(out)]) == 1
    printed = capsys.readouterr().out.splitlines()
    slower = [line for line in printed if line.startswith("layer groups slower")]
    assert len(slower) == 2
    assert all("block3 1.3" in line and "block2" not in line for line in slower)
    groups = pd.read_csv(out / "compare_groups.csv")
    named = groups[groups["verdict"].str.startswith("slower")]
    assert set(named["what"]) == {"block3"}
    assert named["relative"].between(1.25, 1.35).all()


def test_single_runs_give_no_verdict(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(pace=lambda _: 2.0)
    after = make_run(tmp_path / "after", experiments(1), machine=machine, seed=2)
    assert main(["compare", str(before), str(after)]) == 0
    assert "no verdict" in capsys.readouterr().out


def test_runs_without_a_common_configuration_are_refused(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path / "other", experiments(1, batch_size=50))
    assert main(["compare", str(before), str(other)]) == 2
    assert "no configuration that it and" in capsys.readouterr().err
