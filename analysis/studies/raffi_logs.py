"""Raffi and Dazzi's printed step statistics, compared with the author's own logs."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.warmup import step_statistics
from analysis.studies.study import FOLDER, published_studies, read_published

LOGS = FOLDER / "raffi" / "logs"


def printed_statistics(logs: Iterable[tuple[Path, str, str, NDArray[Any]]]) -> pd.DataFrame:
    """A row a printed statistic of those (path, name, phase, seconds) that are the author's logs.

    `verdict` says whether the log gives the printed digits, rounded or cut off.
    """
    printed = read_published("raffi_tables", as_text=True)
    rows = []
    for path, name, phase, seconds in logs:
        table = _known_logs().get(_digest(path))
        if table is None or not len(seconds):
            continue
        mine = printed[(printed["table"] == str(table)) & (printed["phase"] == phase)].iloc[0]
        for quantity, value in step_statistics(seconds).items():
            text = str(mine[quantity])
            rows.append(
                {
                    "table": table,
                    "log": name,
                    "phase": phase,
                    "quantity": quantity,
                    "printed": float(text),
                    "from_log": value,
                    "verdict": _digits_verdict(value, text),
                }
            )
    return pd.DataFrame(rows)


@functools.cache
def _known_logs() -> dict[str, int]:
    tables = published_studies()["raffi"].logs
    return {_digest(LOGS / name): table for name, table in tables.items()}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def _digits_verdict(value: float, printed: str) -> str:
    if not matches_published_digits(value, printed):
        return f"misprint: the log has {value:.2f}"
    decimals = len(printed.partition(".")[2])
    return "as printed" if f"{value:.{decimals}f}" == printed else "as printed, digits cut off"


def matches_published_digits(value: float, published: str) -> bool:
    """Whether `value` is within one unit of the last published digit, so rounded or cut off."""
    return abs(value - float(published)) < 10.0 ** -len(published.partition(".")[2])
