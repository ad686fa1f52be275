"""Compares published statistics with the logs that they were computed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.foreign.csv_logs import StepLog
from analysis.render.document import Table
from analysis.statistics.warmup import step_statistics
from analysis.studies.study import (
    matches_published_digits,
    published_studies,
    read_published_text,
)


def compare_with_published(logs: Sequence[StepLog]) -> Table | None:
    """A table of Raffi's published statistics beside those of his own logs; None for other logs."""
    printed = read_published_text("raffi_tables")
    rows = []
    for log in logs:
        for _, row in printed[printed["table"] == str(log.known_table)].iterrows():
            values = step_statistics(log.seconds(row["phase"]).to_numpy())
            rows += [
                _comparison_row(log, row, quantity, value) for quantity, value in values.items()
            ]
    if not rows:
        return None
    return Table(
        "printed",
        "Printed statistics against the logs they were printed from",
        pd.DataFrame(rows),
        tuple(f"Known defect: {text}" for text in published_studies()["raffi"].defects.values()),
    )


def _comparison_row(
    log: StepLog, row: pd.Series[str], quantity: str, value: float
) -> dict[str, Any]:
    return {
        "table": int(row["table"]),
        "log": log.name,
        "phase": row["phase"],
        "quantity": quantity,
        "printed": float(row[quantity]),
        "from_log": value,
        "verdict": _published_verdict(value, row[quantity]),
    }


def _published_verdict(value: float, printed: str) -> str:
    if not matches_published_digits(value, printed):
        return f"misprint: the log has {value:.2f}"
    decimals = len(printed.partition(".")[2])
    return "as printed" if f"{value:.{decimals}f}" == printed else "as printed, digits cut off"
