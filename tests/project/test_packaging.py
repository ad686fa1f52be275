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
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("gnnhpc", "jobs", "analysis")


def declared(*extras: str) -> dict[str, str]:
    """Name -> version range, of the dependencies and these extras."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return as_ranges(lines)


def as_ranges(lines: list[str]) -> dict[str, str]:
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(each.name): str(each.specifier) for each in requirements}


def locked() -> list[Requirement]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def modules(package: str) -> list[str]:
    """Full names of a package's modules; files beside an example sweep are not among them."""
    importable = [path for path in sources(package) if (path.parent / "__init__.py").exists()]
    relative = [path.relative_to(ROOT).with_suffix("") for path in importable]
    return [".".join(path.parts).removesuffix(".__init__") for path in relative]


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert gnnhpc.__version__ == PROJECT["version"] == citation["version"]


def test_environment_yml_says_the_same_as_pyproject() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    entries = environment["dependencies"]
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    conda = as_ranges([entry for entry in entries if isinstance(entry, str) and entry != "pip"])
    assert conda.pop("python") == PROJECT["requires-python"]
    assert conda | as_ranges(pip) == declared("dev")
    assert not conda.keys() & as_ranges(pip).keys()


def test_every_pin_is_exact_and_fits_pyproject() -> None:
    pins = {canonicalize_name(pin.name): pin.specifier for pin in locked()}
    for name, specifier in pins.items():
        assert [clause.operator for clause in specifier] == ["=="], name
    for wanted_name, wanted in declared("dev").items():
        name = canonicalize_name(wanted_name)
        version = next(iter(pins[name])).version
        assert Requirement(f"{name}{wanted}").specifier.contains(version), name


def test_what_is_imported_is_declared() -> None:
    distributions = importlib.metadata.packages_distributions()
    known = declared()
    # An extra; what pydantic, jinja2 and torch for GPUs bring.
    undeclared = {"dgl", "pydantic_core", "markupsafe", "triton"}
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in sources(package)
        for name in {module.split(".")[0] for module in imports(path)}
        if name not in sys.stdlib_module_names and name not in {*PACKAGES, *undeclared}
        if not {canonicalize_name(d) for d in distributions.get(name, [name])} & known.keys()
    }
    assert missing == set()


def test_every_data_file_of_a_package_is_installed_with_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    shipped = settings["package-data"]
    listing = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode:
        pytest.skip("not a git checkout, so data files cannot be decided from leftovers")
    for name in listing.stdout.split():
        path = Path(name)
        if path.suffix != ".py":
            inner = path.relative_to(path.parts[0]).as_posix()
            assert any(fnmatch(inner, each) for each in shipped[path.parts[0]]), name


def test_the_modules_of_a_login_node_do_not_import_torch() -> None:
    names = {*modules("jobs"), *modules("analysis")}
    names -= {name for name in names if name.endswith("__main__")}
    code = f"import sys, {', '.join(sorted(names))}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert names | {"gnnhpc.experiment.stage_cut", "gnnhpc.records.schema"} <= loaded
    assert "torch" not in loaded
