"""Compares published statistics with the logs that they were computed from."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.foreign.csv_logs import StepLog
from analysis.render.named_table import NamedTable
from analysis.studies.study import printed_beside_log, published_studies


def compare_with_published(logs: Sequence[StepLog]) -> NamedTable | None:
    """A table of Raffi's published statistics beside those of his own logs; None for other logs."""
    rows = [
        {
            "table": log.known_table,
            "log": log.name,
            "phase": phase,
            "quantity": quantity,
            "printed": float(printed),
            "from_log": value,
            "verdict": verdict,
        }
        for log in logs
        if log.known_table is not None
        for phase in ("train", "test")
        for quantity, printed, value, verdict in printed_beside_log(
            log.known_table, phase, log.seconds(phase).to_numpy()
        )
    ]
    if not rows:
        return None
    return NamedTable(
        "printed",
        "Printed statistics against the logs they were printed from",
        pd.DataFrame(rows),
        tuple(f"Known defect: {text}" for text in published_studies()["raffi"].defects.values()),
    )
