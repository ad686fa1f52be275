"""Prints the matrix after the tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.defects.matrix import print_rows
from tests.defects.planting import Planting

_KEY = pytest.StashKey[Planting]()


@pytest.fixture(scope="session")
def planting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Planting]:
    """Plants defects; what came of them is printed in the end."""
    made = Planting(tmp_path_factory.mktemp("defects"))
    request.config.stash[_KEY] = made
    yield made


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    made = config.stash.get(_KEY, None)
    if made is None or not made.rows:
        return
    terminalreporter.section("defects: caught by a normal run, by verify")
    for line in print_rows(list(made.rows.values())):
        terminalreporter.write_line(line)
