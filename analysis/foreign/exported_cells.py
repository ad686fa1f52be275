"""What is exported of a run: of each valid cell its settings, and its numbers step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from analysis.loading.run import Run
from analysis.summary.learnt_columns import is_share

_NAMES = {"step_s": "step_s", "loss": "loss"}
_ALSO = ("seed", "repeat", "threads")


@dataclass(frozen=True)
class Scalar:
    """One number of one mini-batch."""

    name: str
    """Phase and quantity: train/loss, test/accuracy, train/step_s."""
    step: int
    at: float
    """Seconds since the epoch: the cell's start, and the seconds of the steps up to this one."""
    value: float


@dataclass(frozen=True)
class ExportedCell:
    """One cell as other programs know a run: parameters, tags and scalars."""

    cell: str
    settings: dict[str, bool | int | float | str]
    flags: str
    scalars: list[Scalar]


def exported_cells(run: Run) -> list[ExportedCell]:
    """The valid cells, in the manifest's order; nobody should take the others' numbers for any."""
    steps = dict(list(run.steps.groupby("cell", observed=True)))
    return [
        ExportedCell(
            str(row["cell"]),
            dict(_settings(row, run.settings)),
            str(row["flags"] or ""),
            list(_scalars(steps[row["cell"]], _started(row["started_at"]))),
        )
        for row in run.cells.to_dict("records")
        if row["valid"] and row["cell"] in steps
    ]


def _settings(
    row: dict[Any, Any], names: tuple[str, ...]
) -> Iterator[tuple[str, bool | int | float | str]]:
    """Those that the cell has: a column is there for every model's and every data set's."""
    for name in (*names, *_ALSO):
        value = row.get(name)
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and value.is_integer():
            # A column that other cells have no number in holds whole numbers as these.
            value = int(value)
        missing = isinstance(value, float) and not math.isfinite(value)
        if isinstance(value, bool | int | float | str) and not missing:
            yield name, value


def _started(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def _scalars(steps: pd.DataFrame, began: float) -> Iterator[Scalar]:
    at = began + (steps["wall_s"] + steps["data_s"]).cumsum()
    metrics = {name: name for name in map(str, steps.columns) if is_share(name)}
    for column, name in (_NAMES | metrics).items():
        known = steps[column].notna()
        for phase, step, when, value in zip(
            steps.loc[known, "phase"], steps.loc[known, "step"], at[known],
            steps.loc[known, column], strict=True,
        ):  # fmt: skip
            yield Scalar(f"{phase}/{name}", int(step), float(when), float(value))
