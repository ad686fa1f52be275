"""Each planted defect is named by the mechanism that is to find it, and healthy cells by none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.defects.cells import Cell
from tests.defects.defect import DEFECTS
from tests.defects.running import flagged_in, row_of
from tests.tools.cells import manifest_of, run
from tests.tools.forked import spawn

pytestmark = pytest.mark.distributed

QUICK = (
    "gradients summed over replicas",
    "an activation one micro batch late",
    "a halo one hop short",
    "a gradient of a kernel wrong in one parameter",
    "an optimizer step skipped on one stage",
    "a step missing from the records of one rank",
)
"""Those that `make test` plants; `make defects` plants all."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("defects")


def all_defects() -> Iterator[Any]:
    assert set(QUICK) <= set(DEFECTS)
    for name in DEFECTS:
        yield pytest.param(name, marks=() if name in QUICK else pytest.mark.defects)


def all_cells() -> list[Cell]:
    by_id = {defect.cell.experiment().id: defect.cell for defect in DEFECTS.values()}
    return list(by_id.values())


def plant_all() -> None:
    for defect in DEFECTS.values():
        if defect.how != "files":
            defect.plant()


def test_plants_find_what_they_change() -> None:
    spawn(plant_all, 2)


@pytest.mark.parametrize("name", list(all_defects()))
def test_a_defect_is_named(name: str, folder: Path) -> None:
    row = row_of(DEFECTS[name], folder / name)
    assert row.named is not None, row


@pytest.mark.defects
@pytest.mark.parametrize("cell", all_cells(), ids=lambda cell: cell.experiment().id)
def test_without_a_defect_nothing_is_found(cell: Cell, tmp_path: Path) -> None:
    (one,) = manifest_of(tmp_path, cell.experiment())
    assert flagged_in(tmp_path, run(tmp_path, one)) == []
