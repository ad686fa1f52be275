"""A wheel, built here and installed into a fresh environment, serves a user in another folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.tools.console import ROOT, Console

PACKAGES = ("gnnhpc", "jobs", "analysis")
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


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Console:
    """The installed `gnnhpc`, in a user's own project with misleading names, under git."""
    place = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(place)
    project = place / "project"
    project.mkdir()
    venv.create(project / ".venv", symlinks=True)
    python = project / ".venv/bin/python"
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel), cwd=place)
    # The dependencies are those of this environment.
    others = {str(distribution(name).locate_file("")) for name in ("torch", "typer")}
    site = next((project / ".venv/lib").glob("python*/site-packages"))
    (site / "others.pth").write_text("\n".join(others))
    for name in PACKAGES:
        (project / f"{name}.py").write_text("raise SystemExit('somebody else ran')")
    git = ["git", "-C", str(project), "-c", "user.name=me", "-c", "user.email=me@localhost"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "Begin"], check=True)
    caches = {"GNNHPC_KERNEL_CACHE": str(place / "kernels"), "OMP_NUM_THREADS": "1"}
    return Console(python.parent, project, str(python), caches)


@pytest.mark.slow
def test_the_command_is_the_installed_one(console: Console) -> None:
    done = console.run("gnnhpc", "--version")
    assert done.stdout.startswith("gnnhpc ")
    assert f"({console.cwd}/.venv/lib/python" in done.stdout


@pytest.mark.slow
def test_a_script_names_the_interpreter_and_no_checkout(console: Console) -> None:
    done = console.run("gnnhpc", "submit", "quickstart", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"{console.cwd}/.venv/bin/python -u -m gnnhpc run" in done.stdout
    assert "export PYTHONSAFEPATH=1\n" in done.stdout
    assert "PYTHONPATH=" not in done.stdout.replace('PYTHONPATH="$run/code"', "")
    assert str(ROOT) not in done.stdout


@pytest.mark.slow
def test_a_sweep_runs_and_is_reported(console: Console) -> None:
    submit = ["gnnhpc", "submit", "raffi-vig-small", "--cluster", "local", "--wait", *SMALL]
    done = console.run(*submit)
    assert done.returncode == 0, done.stdout + done.stderr
    run = console.cwd / "runs/raffi-vig-small"
    result = json.loads(next(run.glob("cells/*/attempt-1/result.json")).read_text())
    assert result["status"] == "done"
    assert result["provenance"]["code_from"] == "snapshot"
    assert (run / "code/gnnhpc/kernels/cpp/vig_mlp.cpp").is_file()
    assert list(Path(console.environment["GNNHPC_KERNEL_CACHE"]).glob("vig_mlp-*.so"))
    provenance = json.loads((run / "provenance.json").read_text())
    assert provenance["command"] == submit
    assert provenance["commit"] is None, "the commit of the project that the environment lies in"

    done = console.run("gnnhpc", "report", "runs/raffi-vig-small")
    assert done.returncode == 0, done.stderr
    page = (run / "report/report.html").read_text()
    assert "<style>" in page
    assert "speedup" in page
    assert (run / "report/summary.csv").read_text().count("vig,synthetic-cifar10,seq") >= 1
