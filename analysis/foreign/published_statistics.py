"""Printed statistics against the logs they were printed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.foreign.csv_logs import Log
from analysis.papers.published_data import read_printed, same_as_printed, sources
from analysis.render.table_files import Table
from analysis.stats.step_times import step_statistics


def compare_printed(logs: Sequence[Log]) -> Table | None:
    """For logs that are Raffi's own: his printed statistics against the log; none for others."""
    printed = read_printed("raffi_tables")
    rows = []
    for log in logs:
        for _, row in printed[printed["table"] == str(log.known_table)].iterrows():
            values = step_statistics(log.seconds(row["phase"]).to_numpy())
            rows += [_compare(log, row, quantity, value) for quantity, value in values.items()]
    if not rows:
        return None
    return Table(
        "printed",
        "Printed statistics against the logs they were printed from",
        pd.DataFrame(rows),
        tuple(f"Known defect: {text}" for text in sources()["raffi"].defects.values()),
    )


def _compare(log: Log, row: pd.Series[str], quantity: str, value: float) -> dict[str, Any]:
    return {
        "table": int(row["table"]),
        "log": log.name,
        "phase": row["phase"],
        "quantity": quantity,
        "printed": float(row[quantity]),
        "from_log": value,
        "verdict": _printed_verdict(value, row[quantity]),
    }


def _printed_verdict(value: float, printed: str) -> str:
    if not same_as_printed(value, printed):
        return f"misprint: the log has {value:.2f}"
    decimals = len(printed.partition(".")[2])
    return "as printed" if f"{value:.{decimals}f}" == printed else "as printed, digits cut off"
