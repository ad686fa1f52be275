"""No defect passes a run: each is planted, run and verified, and its verdict names the cause."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.defects.expected import EXPECTED
from tests.defects.matrix import NOT_VERIFIED, README, kinds, readme_block, written_block
from tests.defects.outcome import normal_run, verification
from tests.defects.planting import Planting
from tests.defects.reading import judged_folder
from tests.defects.resumed import HEALTHY, resumed_run
from tests.defects.settings import SETTINGS, Setting

pytestmark = pytest.mark.distributed


def one_of_each_class() -> Iterator[Any]:
    """Every defect: the first of each class is slow, the others are for `make defects`."""
    seen: set[str] = set()
    for name, kind in kinds().items():
        yield pytest.param(name, marks=pytest.mark.defects if kind in seen else pytest.mark.slow)
        seen.add(kind)


@pytest.mark.defects
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_without_a_defect_there_is_no_complaint(setting: Setting, tmp_path: Path) -> None:
    for outcome in (
        normal_run(tmp_path / "run", setting),
        verification(tmp_path / "verify", setting),
    ):
        assert outcome.passed, outcome


@pytest.mark.defects
@pytest.mark.parametrize("setting", HEALTHY, ids=lambda setting: setting.name)
def test_without_a_defect_a_resume_is_no_complaint(setting: Setting, tmp_path: Path) -> None:
    outcome = resumed_run(tmp_path, None, setting)
    assert outcome.passed, outcome


@pytest.mark.slow
def test_without_a_defect_a_folder_is_no_complaint(planting: Planting) -> None:
    outcome = judged_folder(planting.real)
    assert outcome.passed, outcome


def test_each_defect_is_in_the_matrix_once() -> None:
    assert list(kinds()) == list(EXPECTED)


@pytest.mark.parametrize("defect", list(one_of_each_class()))
def test_a_defect_is_caught_and_named(defect: str, planting: Planting) -> None:
    expected, row = EXPECTED[defect], planting.row(defect)
    if expected.run is None:
        assert row.run.passed, row.run
    else:
        assert not row.run.passed
        assert row.run.has(expected.run), row.run
    if row.verify is not None and row.kind not in NOT_VERIFIED:
        assert row.verify.passed == (expected.verify is None), row.verify
        assert (expected.verify or "") in row.verify.complaints[0].words, row.verify


def test_the_readme_has_the_matrix_as_it_is() -> None:
    assert written_block(README.read_text(encoding="utf-8")) == readme_block(), (
        "run `python -m tests.defects --table`"
    )
