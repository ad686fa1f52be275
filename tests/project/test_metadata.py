"""What the project says of itself: version, citation, types, and what checks a change."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import gnnhpc

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert gnnhpc.__version__ == PROJECT["version"] == citation["version"]


@pytest.mark.parametrize("module", ["gnnhpc.console", "jobs", "gnnhpc", "analysis"])
def test_every_command_reports_its_version(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"]
        if module != "gnnhpc.console"
        else [sys.executable, "-c", "from gnnhpc.console import main; main(['--version'])"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"gnnhpc {PROJECT['version']} ({ROOT}, Python 3.")


@pytest.mark.parametrize("package", ["gnnhpc", "jobs", "analysis"])
def test_every_package_ships_its_types(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
    assert "py.typed" in SETTINGS["tool"]["setuptools"]["package-data"][package]
