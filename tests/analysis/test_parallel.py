"""Work shared between processes: order, errors, and helpers that are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial

import pytest

from analysis.figures import draw_in_parallel as parallel
from analysis.figures.draw_in_parallel import run_in_parallel
from gnnhpc.core.errors import InputError


@pytest.fixture(autouse=True)
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: 3)


def place(number: int) -> tuple[int, int]:
    return number, os.getpid()


def test_results_come_in_order_and_from_several_processes() -> None:
    done = run_in_parallel([partial(place, number) for number in range(8)])
    assert [number for number, _ in done] == list(range(8))
    assert len({process for _, process in done}) == 3
    assert done[0][1] == os.getpid()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_jobs_than_cores(count: int) -> None:
    done = run_in_parallel([partial(place, number) for number in range(count)])
    assert [number for number, _ in done] == list(range(count))


def test_one_core_does_all_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: 1)
    done = run_in_parallel([partial(place, number) for number in range(4)])
    assert {process for _, process in done} == {os.getpid()}


def refuse(number: int, wrong: int) -> int:
    if number == wrong:
        raise InputError("record", "key", number, "another")
    return number


@pytest.mark.parametrize("wrong", range(5))
def test_an_error_is_raised_wherever_it_happened(wrong: int) -> None:
    jobs = [partial(refuse, number, wrong) for number in range(5)]
    with pytest.raises(InputError) as caught:
        run_in_parallel(jobs)
    assert (caught.value.key, caught.value.found) == ("key", wrong)
    assert not multiprocessing.active_children()


def test_where_a_helper_failed_is_told() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_in_parallel([lambda: 1, lambda: 1 // 0])
    assert "in _run_and_send" in caught.value.__notes__[0]


def die_elsewhere(here: int) -> int:
    if os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return here


def test_the_jobs_of_a_killed_helper_are_done_here() -> None:
    here = os.getpid()
    assert run_in_parallel([partial(die_elsewhere, here)] * 6) == [here] * 6


def test_cores_are_those_given_to_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5})
    assert parallel.usable_cores() == 2
    monkeypatch.setattr("sys.platform", "darwin")
    assert parallel.usable_cores() == 1
