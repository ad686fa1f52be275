"""The output of `list`: a line a run, or JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from jobs.printing.sizes import format_size
from jobs.state.known_runs import KnownRun

_UNITS = ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "min"))


def runs_lines(runs: Sequence[KnownRun]) -> list[str]:
    """A line a run, in columns: its name, age, size, cells, and how many are in which state."""
    now = time.time()
    rows = [
        (
            one.run.name,
            format_age(now - one.created_at),
            format_size(one.size),
            str(len(one.status.cells)) if one.status else "",
            _state_text(one),
        )
        for one in runs
    ]
    rows.insert(0, ("run", "age", "size", "cells", "state"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<>>>", widths, strict=True))
    return [f"{form.format(*row)}  {row[-1]}".rstrip() for row in rows]


def runs_json(runs: Sequence[KnownRun]) -> str:
    """For scripts: of each run its folder, age in seconds, bytes, counts and damage."""
    now = time.time()
    return json.dumps(
        [
            {
                "run": str(one.run),
                "age_s": round(now - one.created_at),
                "bytes": one.size,
                "cells": len(one.status.cells) if one.status else None,
                "counts": one.status.counts() if one.status else None,
                "slurm": one.status.slurm if one.status else None,
                "damage": one.damage,
            }
            for one in runs
        ],
        indent=1,
        ensure_ascii=False,
    )


def format_age(seconds: float) -> str:
    """Seconds as 3 d, 5 h, 12 min or now: whole units, of the largest that fits."""
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{int(seconds // unit)} {name}"
    return "now"


def _state_text(one: KnownRun) -> str:
    if one.status is None:
        return f"damaged: {one.damage}"
    return ", ".join(f"{count} {state}" for state, count in one.status.counts().items())
