"""What is declared agrees with itself and with what the code imports."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gnnhpc

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PACKAGES = ("gnnhpc", "jobs", "analysis")


def by_name(lines: list[str]) -> dict[str, Requirement]:
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(each.name): each for each in requirements}


USED = by_name(PROJECT["dependencies"])
DEVELOPED = USED | by_name(PROJECT["optional-dependencies"]["dev"])


def imports(path: Path) -> Iterator[str]:
    """The packages that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


def modules(package: str) -> set[str]:
    """Full names of a package's modules; files beside an example sweep are not among them."""
    paths = [each for each in (ROOT / package).rglob("*.py") if each.name != "__main__.py"]
    importable = [path for path in paths if (path.parent / "__init__.py").exists()]
    parts = (path.relative_to(ROOT).with_suffix("").parts for path in importable)
    return {".".join(each).removesuffix(".__init__") for each in parts}


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert gnnhpc.__version__ == PROJECT["version"] == citation["version"]


def test_environment_yml_says_the_same_as_pyproject() -> None:
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip,) = (by_name(entry["pip"]) for entry in entries if isinstance(entry, dict))
    conda = by_name([entry for entry in entries if isinstance(entry, str) and entry != "pip"])
    assert str(conda.pop("python").specifier) == PROJECT["requires-python"]
    assert not conda.keys() & pip.keys()
    found = {name: str(each.specifier) for name, each in (conda | pip).items()}
    assert found == {name: str(each.specifier) for name, each in DEVELOPED.items()}


def test_every_pin_is_exact_and_fits_pyproject() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = by_name([line for line in lines if line and not line.startswith("#")])
    assert all(str(pin.specifier).startswith("==") for pin in pins.values())
    for name, wanted in DEVELOPED.items():
        version = str(pins[name].specifier).removeprefix("==")
        assert wanted.specifier.contains(version), name


def test_what_is_imported_is_declared() -> None:
    distributions = importlib.metadata.packages_distributions()
    # An extra; what pydantic, jinja2 and torch for GPUs bring.
    known = {*sys.stdlib_module_names, *PACKAGES, "dgl", "pydantic_core", "markupsafe", "triton"}
    found = {
        (name, str(path.relative_to(ROOT)))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in set(imports(path)) - known
    }
    for name, path in found:
        names = {canonicalize_name(each) for each in distributions.get(name, [name])}
        assert names & USED.keys(), f"{path}: {name}"


def test_every_data_file_of_a_package_is_installed_with_it() -> None:
    shipped = PYPROJECT["tool"]["setuptools"]["package-data"]
    listing = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode:
        pytest.skip("not a git checkout, so data files cannot be decided from leftovers")
    for path in map(Path, listing.stdout.split()):
        if path.suffix != ".py":
            package, inner = path.parts[0], path.relative_to(path.parts[0]).as_posix()
            assert any(fnmatch(inner, each) for each in shipped[package]), path


def test_the_modules_of_a_login_node_do_not_import_torch() -> None:
    names = modules("jobs") | modules("analysis")
    code = f"import sys, {', '.join(sorted(names))}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert names | {"gnnhpc.experiment.stage_cut", "gnnhpc.records.schema"} <= loaded
    assert "torch" not in loaded
