"""Failures of ranks: each rank writes its own, and the first that is no consequence is the
cause."""

from __future__ import annotations

import datetime
import json
import sysconfig
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.core.versioned_json import build_record, read_object, write_atomically
from gnnhpc.records.schema import Failure

_PACKAGE = Path(__file__).parents[1]
_STDLIB = sysconfig.get_path("stdlib")
_INSTALLED = {"site-packages", "dist-packages"}
SETTLE_S = 3.0
"""How long a failing rank waits for the other ranks' failures before it writes the result."""


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def one_line(error: BaseException) -> str:
    """Class and text of an error's first cause; torch's pipelining wraps the errors of a stage."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}" if text else type(error).__name__


def line_of_user(error: BaseException) -> str | None:
    """Where an error passed a user's own code last: `deep_gcn.py, line 40`; None if nowhere."""
    while error.__cause__ is not None:
        error = error.__cause__
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        installed = frame.filename.startswith(("<", _STDLIB)) or _INSTALLED & set(path.parts)
        if not installed and _PACKAGE not in path.parents and frame.name != "<module>":
            return f"{path.name}, line {frame.lineno}"
    return None


def write_failure(attempt: AttemptPaths, failure: Failure, by: int) -> None:
    """Write the first failure that rank `by` reports; its later ones are consequences."""
    path = attempt.failure(by)
    if not path.exists():
        write_atomically(path, json.dumps(asdict(failure)) + "\n")


def read_failures(attempt: AttemptPaths, world_size: int) -> list[Failure]:
    """The failures that ranks have written, earliest first."""
    failures = []
    for rank in range(world_size):
        try:
            raw = read_object(attempt.failure(rank), "a failure, as written")
            failures.append(build_record(Failure, raw, attempt.failure(rank)))
        except (FileNotFoundError, InputError):
            continue
    return sorted(failures, key=lambda failure: failure.at)


def recorded_cause(attempt: AttemptPaths, world_size: int) -> Failure | None:
    """The earliest failure that is no consequence of another, if ranks have written any."""
    failures = read_failures(attempt, world_size)
    causes = [failure for failure in failures if not is_consequence(failure)]
    return next(iter(causes or failures), None)


def find_first_failure(
    attempt: AttemptPaths, world_size: int, hosts: list[str], this: Failure
) -> Failure:
    """The failure that caused the others: the earliest that is not a consequence of another.

    A killed process writes nothing, and the others only see its connection close. So where all
    failures are consequences, one of them of a closed connection, a rank that has written none is
    the cause.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        failures = read_failures(attempt, world_size) or [this]
        cause = next((each for each in failures if not is_consequence(each)), None)
        if cause is not None:
            return cause
        if len(failures) == world_size or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    silent = sorted(set(range(world_size)) - {failure.rank for failure in failures})
    if not silent or not any(_is_lost_connection(failure) for failure in failures):
        return failures[0]
    host = hosts[silent[0]] if hosts else "unknown host"
    return replace(failures[0], rank=silent[0], host=host, error=_LOST_RANK)


_LOST_RANK = "ended without an error message: killed, or out of memory"
_LOST_CONNECTION = ("connection closed by peer", "connection reset", "broken pipe", "read error")
ASKED_TO_STOP = "asked to stop and the step did not end in time"
"""How the failure of a rank ends that a signal stopped."""


def is_consequence(failure: Failure) -> bool:
    """Whether a failure only reports that another rank has ended, or that a signal stopped this
    one."""
    return _is_lost_connection(failure) or ASKED_TO_STOP in failure.error


def _is_lost_connection(failure: Failure) -> bool:
    return any(sign in failure.error.lower() for sign in _LOST_CONNECTION)
