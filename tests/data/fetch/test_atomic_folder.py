"""A folder that appears whole or not at all."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from gnnhpc.data.fetch.atomic_folder import publishing


def _publish_slowly(target: Path, barrier: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    with publishing(target) as temporary:
        if temporary is not None:
            (temporary / "first").write_text("1")
            with (target.parent / "makers").open("a") as makers:
                makers.write("made\n")
            time.sleep(0.2)
            (temporary / "second").write_text("2")
    assert sorted(path.name for path in target.iterdir()) == ["first", "second"]


def test_of_many_processes_one_makes_it_and_all_find_it_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    processes = [
        context.Process(target=_publish_slowly, args=(tmp_path / "made", barrier)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert (tmp_path / "makers").read_text() == "made\n"


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), publishing(tmp_path / "a" / "made") as temporary:
        assert temporary is not None
        (temporary / "half").touch()
        raise RuntimeError
    assert [path.name for path in (tmp_path / "a").iterdir()] == [".made.lock"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".made.partial-0123"
    left.mkdir()
    (left / "half").touch()
    with publishing(tmp_path / "made") as temporary:
        assert temporary is not None
        assert not left.exists()
    assert (tmp_path / "made").is_dir()


def test_the_first_to_appear_stands(tmp_path: Path) -> None:
    target = tmp_path / "made"
    with publishing(target) as temporary:
        assert temporary is not None
        (temporary / "mine").touch()
        target.mkdir()
        (target / "theirs").touch()
    assert [path.name for path in target.iterdir()] == ["theirs"]
    assert not list(tmp_path.glob(".made.partial-*"))
