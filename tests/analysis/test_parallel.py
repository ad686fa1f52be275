"""Tasks that are shared between processes: order, errors, and processes that are killed."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from analysis.figures import draw_in_parallel
from analysis.figures.draw_in_parallel import run_in_parallel
from gnnhpc.core.errors import InputError


@pytest.fixture(autouse=True)
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_in_parallel, "usable_cores", lambda: 3)


def process_of(number: int) -> tuple[int, int]:
    return number, os.getpid()


@pytest.mark.parametrize("count", [0, 1, 2, 8])
def test_results_come_in_order(count: int) -> None:
    done = run_in_parallel([partial(process_of, number) for number in range(count)])
    assert [number for number, _ in done] == list(range(count))


def test_one_core_does_all_tasks_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_in_parallel, "usable_cores", lambda: 1)
    done = run_in_parallel([partial(process_of, number) for number in range(4)])
    assert {process for _, process in done} == {os.getpid()}


def refuse(number: int) -> int:
    if number == 3:
        raise InputError("record", "key", number, "another")
    return number


def test_the_error_of_a_task_is_raised() -> None:
    with pytest.raises(InputError, match="found 3"):
        run_in_parallel([partial(refuse, number) for number in range(5)])


def die_elsewhere(here: int) -> int:
    if os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return here


def test_the_tasks_of_a_killed_process_are_done_here() -> None:
    here = os.getpid()
    assert run_in_parallel([partial(die_elsewhere, here)] * 6) == [here] * 6
