"""Which packages this process and its children find."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gnnhpc.core.python_path import ROOT, found_at, search_path_for_children


def test_our_own_packages_lie_in_one_folder() -> None:
    assert [found_at(name) for name in ("gnnhpc", "jobs")] == [ROOT / "gnnhpc", ROOT / "jobs"]


def test_a_module_a_package_and_a_bare_folder_are_found_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_module.py").write_text("raise AssertionError")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package/__init__.py").write_text("raise AssertionError")
    (tmp_path / "own_folder").mkdir()
    assert found_at("own_module") == tmp_path / "own_module.py"
    assert found_at("own_package") == tmp_path / "own_package"
    assert found_at("own_folder") == tmp_path / "own_folder"
    assert found_at("own_nothing") is None


def test_children_look_into_the_current_folder_only_where_we_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/their/modules")
    monkeypatch.setattr(sys, "path", ["/some/bin", *sys.path])
    found = search_path_for_children()
    assert found["PYTHONPATH"].split(os.pathsep)[-1] == "/their/modules"
    assert found["PYTHONSAFEPATH"] == "1"
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    assert "PYTHONSAFEPATH" not in search_path_for_children()
