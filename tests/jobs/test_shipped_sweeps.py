"""A shipped sweep has a name; a file of the user's comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.errors import InputError
from jobs.sweep.plan import SHIPPED as FOLDER
from jobs.sweep.plan import find_spec, plan


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_bare_name_is_a_shipped_sweep() -> None:
    planned = plan("quickstart")
    assert planned.source == str(FOLDER / "quickstart.yaml")
    assert planned.cells == plan(FOLDER / "quickstart.yaml").cells


def test_a_file_of_the_same_name_comes_first(elsewhere: Path) -> None:
    (elsewhere / "quickstart").write_text("name: own")
    assert find_spec(Path("quickstart")) == Path("quickstart")


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(
        InputError,
        match=r"^quikstart: found no such file.*dearing-gat, deep-gcn, graphs, layers",
    ):
        find_spec(Path("quikstart"))
