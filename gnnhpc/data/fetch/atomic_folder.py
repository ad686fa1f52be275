"""A folder that appears whole or not at all, whoever else makes it at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def publishing(target: Path) -> Iterator[Path | None]:
    """Yield an empty folder to fill, which is renamed to `target` at a clean exit.

    Yields None where `target` is there already, perhaps made by another process while this one
    waited for its turn. Where the file system has no locks several may fill at once: the first
    rename stands and the others' work is dropped. Raises OSError where nothing can be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        yield None
        return
    with _turn(target) as alone:
        if target.is_dir():
            yield None
            return
        with _partial_folder(target, alone=alone) as temporary:
            yield temporary
            with contextlib.suppress(OSError):
                temporary.rename(target)
            if not target.is_dir():
                raise OSError(f"{target} could not be made")


@contextlib.contextmanager
def adding(target: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, whose files are moved into `target` at a clean exit.

    Each appears whole, and none replaces a file that is there. Raises OSError where nothing can
    be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _turn(target) as alone, _partial_folder(target, alone=alone) as temporary:
        yield temporary
        if target.is_dir():
            _move_files(temporary, target)
        else:
            temporary.rename(target)


def _move_files(source: Path, target: Path) -> None:
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        place = target / path.relative_to(source)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            path.rename(place)


@contextlib.contextmanager
def _partial_folder(target: Path, *, alone: bool) -> Iterator[Path]:
    """A new folder beside `target`, removed at the end where it was not renamed."""
    if alone:
        _remove_abandoned(target)
    temporary = target.with_name(f"{_prefix(target)}{secrets.token_hex(6)}")
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _prefix(target: Path) -> str:
    return f".{target.name}.partial-"


@contextlib.contextmanager
def _turn(target: Path) -> Iterator[bool]:
    """Wait for the right to make `target`; False where the file system cannot give it."""
    with target.with_name(f".{target.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True


def _remove_abandoned(target: Path) -> None:
    """Whoever has the turn is alone, so what else lies half made was left by a killed process."""
    for left in target.parent.glob(f"{_prefix(target)}*"):
        shutil.rmtree(left, ignore_errors=True)
