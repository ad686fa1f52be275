"""How an attempt ends: what a failing rank leaves behind, and the one result that is written."""

from __future__ import annotations

import datetime
import json
import os
import time
from dataclasses import asdict

from gnnhpc.records.paths import AttemptPaths, temporary_beside, write_atomically
from gnnhpc.records.schema import Failure, Result

SETTLE_S = 3.0
"""How long the ranks of a failing cell are given to say why, before one of them concludes."""


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def one_line(error: BaseException) -> str:
    """The class and text of what began it, as status shows it: torch's pipelining wraps errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}" if text else type(error).__name__


def leave_failure(attempt: AttemptPaths, failure: Failure, by: int) -> None:
    """Write what rank `by` says of a failure, once; what it says later is a consequence."""
    path = attempt.failure(by)
    if not path.exists():
        write_atomically(path, json.dumps(asdict(failure)) + "\n")


def read_failures(attempt: AttemptPaths, world_size: int) -> list[Failure]:
    """The failures that ranks left, earliest first."""
    failures = []
    for rank in range(world_size):
        try:
            failures.append(Failure(**json.loads(attempt.failure(rank).read_text())))
        except (OSError, ValueError, TypeError):
            continue
    return sorted(failures, key=lambda failure: failure.at)


def first_cause(attempt: AttemptPaths, world_size: int, hosts: list[str], own: Failure) -> Failure:
    """Which rank failed first: the earliest that is no mere echo, or the one that fell silent.

    A killed process writes nothing, and the others only see its connection close. So when every
    failure is an echo, one of them of a closed connection, and some rank has said nothing at all,
    that rank is the cause.
    """
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        failures = read_failures(attempt, world_size)
        if len(failures) == world_size or any(not is_echo(f) for f in failures):
            break
        time.sleep(0.1)
    failures = read_failures(attempt, world_size) or [own]
    for failure in failures:
        if not is_echo(failure):
            return failure
    silent = sorted(set(range(world_size)) - {failure.rank for failure in failures})
    if not silent or not any(_misses_another(failure) for failure in failures):
        return failures[0]
    rank = silent[0]
    return Failure(
        rank=rank,
        host=hosts[rank] if rank < len(hosts) else "unknown host",
        step=failures[0].step,
        phase=failures[0].phase,
        error="died without a word: killed, or out of memory",
        at=failures[0].at,
    )


_GONE = ("connection closed by peer", "connection reset", "broken pipe", "read error")
_TOLD = "told to"


def is_echo(failure: Failure) -> bool:
    """Whether this failure only says that another rank went away, or that somebody ended us."""
    return _misses_another(failure) or _TOLD in failure.error.lower()


def _misses_another(failure: Failure) -> bool:
    return any(sign in failure.error.lower() for sign in _GONE)


def conclude(attempt: AttemptPaths, result: Result) -> bool:
    """Write result.json unless there is one already; true if this was the one."""
    temporary = temporary_beside(attempt.result)
    result.write(temporary)
    try:
        os.link(temporary, attempt.result)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True
