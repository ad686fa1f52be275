"""What tests share: ranks, a data root, a small run folder's worth of arguments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.tools.cells import RunOnce

# Tests compare numbers, not speed; one thread keeps them the same and the machine usable.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton asks for it when it is imported, which torch may do: without a GPU it interprets programs.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# Tests measure nothing, so that their local runs need not take turns.
os.environ["GNNHPC_LOCAL_LOCK"] = ""

# An example that takes long on a busy machine is no failure.
settings.register_profile("gnnhpc", deadline=None)
settings.load_profile("gnnhpc")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Cases that a test's `quick` does not name are slow."""
    unnamed: dict[str, set[str]] = {}
    for item in items:
        quick = item.get_closest_marker("quick")
        if quick is None or not isinstance(item, pytest.Function):
            continue
        test, case = item.nodeid.partition("[")[0], item.callspec.id
        if case not in quick.args:
            item.add_marker(pytest.mark.slow)
        unnamed.setdefault(test, set(quick.args)).discard(case)
    if any("::" in argument for argument in config.args):
        # Cases that were asked for by name leave others out.
        return
    for test, names in unnamed.items():
        if names:
            raise pytest.UsageError(
                f"{test}: quick: found {sorted(names)}, which no case is called"
            )


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> RunOnce:
    """Runs each cell once a session; tests read what it left behind, and change nothing of it."""
    from tests.tools.cells import RunOnce

    base = tmp_path_factory.getbasetemp()
    workers = "PYTEST_XDIST_WORKER" in os.environ
    return RunOnce((base.parent if workers else base) / "cells")


@pytest.fixture
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root that $GNNHPC_DATA names."""
    root = tmp_path / "data"
    root.mkdir()
    monkeypatch.setenv("GNNHPC_DATA", str(root))
    return root
