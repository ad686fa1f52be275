"""`python -m gnnhpc`: mistakes are one line, status 2 and nothing written; help is cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gnnhpc.cli import main
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.manifest import assign_indices, write_manifest
from gnnhpc.kernels.compile import cache_folder
from tests.tools.cells import gat

OUT = "OUT"
MISTAKES = {
    "run": "run: found nothing to run; allowed: --manifest, --cell or --model",
    "verify": "verify: found nothing to verify; allowed: --model, --cell or --all",
    "frob": "command line: found no such command 'frob'",
    "run --manifest M": "--manifest: found alone; allowed: --array and --index with it",
    "run --cell OUT/none": "OUT/none: found no such file; allowed: the manifest.jsonl of a run",
    "run --cell M": "M: found 2 cells; allowed: one line of a manifest",
    "verify --all OUT/none": "OUT/none: found no such file",
    "run --model vit": "flags: model.name: found 'vit'; allowed: gat, gatv2, gcn, gcnii, gin, "
    "graphconv, resgcn, sage, vig, or a custom model as module:Class",
    "run --model vig --set batch_size": "--set: found 'batch_size'; allowed: key=value",
    "run --model vig --set a={": "--set a:1: found unreadable YAML (expected the node content",
    "run --model vig --set layout.x=3": "--set: layout.x: found layout is no mapping; allowed: ",
    "run --model gat --data cora": "data cora: data root: found none; allowed: a folder by --",
    "run --model vig --layout pp2": "environment: world size under alone: found 1; allowed: 2, one "
    "rank for each of pp2; start it with srun -n 2 or torchrun --nproc-per-node 2",
}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, a manifest beside it; no cached data, no launcher's variables."""
    for name in ("RANK", "WORLD_SIZE", "GNNHPC_DATA", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    # Compiled once for all tests.
    monkeypatch.setenv("GNNHPC_KERNEL_CACHE", str(cache_folder()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_manifest(tmp_path / "M", assign_indices([gat(), gat(seed=1)]))
    place = tmp_path / OUT
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def spelled(arguments: str, place: Path) -> list[str]:
    return [
        str(place.parent / "M") if word == "M" else word.replace(OUT, str(place))
        for word in arguments.split()
    ]


@pytest.mark.parametrize(("arguments", "line"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_a_mistake_is_one_line_and_nothing_written(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    assert main(spelled(arguments, elsewhere)) == 2
    said = capsys.readouterr()
    expected = line.replace("M:", f"{elsewhere.parent / 'M'}:").replace(OUT, str(elsewhere))
    assert said.err.startswith(f"error: {expected}")
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert list(elsewhere.iterdir()) == []


def test_what_needs_no_torch_does_not_import_it() -> None:
    code = (
        "import sys; from gnnhpc.cli import main; "
        "status = main(['run', '--model', 'vit']); "
        "print(status, *sorted({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["2"]


def test_flags_make_the_experiment_they_say(elsewhere: Path) -> None:
    """And run it: nested keys, lists and numbers as YAML reads them, attempts beside each other."""
    arguments = "run --model gat --microbatches 2 --out runs/mine --set model.heads=2 "
    arguments += "--set data.nodes=60 --set data.edges=150 --set data.features=16 "
    arguments += "--set optimizer.lr=1e-2 --set train_steps=2 --set test_steps=1 --set check=off"
    assert main(arguments.split()) == 0
    assert main(arguments.split()) == 0
    (cell,) = (elsewhere / "runs" / "mine" / "cells").iterdir()
    attempts = RunPaths(elsewhere / "runs" / "mine").cell(cell.name).attempts()
    assert [attempt.number for attempt in attempts] == [1, 2]
    result = attempts[1].result.read_text()
    assert '"heads": 2' in result
    assert '"lr": 0.01' in result
