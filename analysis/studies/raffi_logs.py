"""Raffi and Dazzi's printed step statistics, compared with the author's own logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from analysis.statistics.warmup import step_statistics
from analysis.studies.study import FOLDER, published_studies, read_published

LOGS = FOLDER / "raffi" / "logs"


def printed_statistics(
    path: Path, phase: str, seconds: NDArray[Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number of the table, and a row a statistic printed there; nothing for another log.

    `verdict` says whether the log gives the printed digits, rounded or cut off.
    """
    table = published_studies()["raffi"].logs.get(path.name)
    if table is None or path.read_text() != (LOGS / path.name).read_text():
        return
    printed = read_published("raffi_tables", as_text=True)
    chosen = (printed["table"] == str(table)) & (printed["phase"] == phase)
    for quantity, value in step_statistics(seconds).items():
        text = str(printed.loc[chosen, quantity].iloc[0])
        decimals = len(text.partition(".")[2])
        verdict = "as printed" if f"{value:.{decimals}f}" == text else "as printed, digits cut off"
        if not matches_published_digits(value, text):
            verdict = f"misprint: the log has {value:.2f}"
        row = {"quantity": quantity, "printed": float(text), "from_log": value, "verdict": verdict}
        yield table, row


def matches_published_digits(value: float, published: str) -> bool:
    """Whether `value` is within one unit of the last published digit, so rounded or cut off."""
    return abs(value - float(published)) < 10.0 ** -len(published.partition(".")[2])
