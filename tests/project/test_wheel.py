"""A wheel, built here and installed into a fresh environment, serves a user in another folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGES = ("gnnhpc", "jobs", "analysis")
Console = Callable[..., subprocess.CompletedProcess[str]]
# One cell of one layout, a few milliseconds a step, on the compiled kernels.
SMALL = [
    *("--set", "data={name: synthetic-cifar10, image_size: 8, train: 64, test: 32}"),
    *("--set", "models={name: vig, blocks: 2, grapher_width: 8, ffn_width: 16, readout_width: 16}"),
    *("--set", "layouts=seq", "--set", "repeats=1", "--set", "batch_size=8"),
    *("--set", "microbatches=2", "--set", "seq_microbatches=1"),
    *("--set", "train_steps=3", "--set", "test_steps=1", "--set", "warmup_steps=1"),
]


def pip(*arguments: str, cwd: Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def build_wheel(place: Path) -> Path:
    """From a copy, because setuptools leaves its build beside the sources."""
    source = place / "source"
    source.mkdir()
    for package in PACKAGES:
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, source / package, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", "..", ".", cwd=source)
    shutil.rmtree(source)
    return next(place.glob("gnnhpc-*.whl"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's own project under git, with misleading names and the wheel in its environment."""
    wheel, project = build_wheel(tmp_path), tmp_path / "project"
    project.mkdir()
    venv.create(project / ".venv", symlinks=True)
    python = project / ".venv/bin/python"
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel), cwd=tmp_path)
    # The dependencies are those of this environment.
    others = {str(distribution(name).locate_file("")) for name in ("torch", "typer")}
    site = next((project / ".venv/lib").glob("python*/site-packages"))
    (site / "others.pth").write_text("\n".join(others))
    for name in PACKAGES:
        (project / f"{name}.py").write_text("raise SystemExit('somebody else ran')")
    git = ["git", "-C", str(project), "-c", "user.name=me", "-c", "user.email=me@localhost"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "Begin"], check=True)
    return project


@pytest.fixture
def console(project: Path) -> Console:
    """Runs the installed `gnnhpc` in the project."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("PYTHON")}
    environment["PATH"] = f"{project}/.venv/bin:{environment['PATH']}"
    environment |= {"GNNHPC_KERNEL_CACHE": str(project.parent / "kernels"), "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def test_a_sweep_of_the_installed_command_runs_and_is_reported(
    console: Console, project: Path
) -> None:
    script = console("gnnhpc", "submit", "quickstart", "--dry-run").stdout
    assert f"{project}/.venv/bin/python -u -m gnnhpc run" in script
    assert "export PYTHONSAFEPATH=1\n" in script
    assert str(ROOT) not in script, "a script names the checkout"
    submit = ["gnnhpc", "submit", "raffi-vig-small", "--cluster", "local", "--wait", *SMALL]
    console(*submit)
    run = project / "runs/raffi-vig-small"
    result = json.loads(next(run.glob("cells/*/attempt-1/result.json")).read_text())
    assert (result["status"], result["provenance"]["code_from"]) == ("done", "snapshot")
    assert (run / "code/gnnhpc/kernels/cpp/vig_mlp.cpp").is_file()
    assert list((project.parent / "kernels").glob("vig_mlp-*.so"))
    provenance = json.loads((run / "provenance.json").read_text())
    assert provenance["command"] == submit
    assert provenance["commit"] is None, "the commit of the project that the environment lies in"
    console("gnnhpc", "report", "runs/raffi-vig-small")
    assert "<style>" in (run / "report/report.html").read_text()
    assert "vig,synthetic-cifar10,seq" in (run / "report/summary.csv").read_text()
