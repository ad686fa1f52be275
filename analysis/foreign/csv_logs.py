"""Reads step logs of other programs: any CSV with columns epoch, batch, seconds and phase."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from analysis.studies.study import table_made_from_log
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout

_COLUMNS = {
    "epoch": ("epoch",),
    "batch": ("batch", "step", "iteration", "minibatch", "mini_batch"),
    "seconds": (
        "batch_time(s)",
        "batch_time",
        "seconds",
        "time(s)",
        "time_s",
        "time",
        "step_time",
        "step_time(s)",
        "wall_s",
    ),
    "phase": ("phase", "split", "mode"),
}
_PHASES = {
    "train": ("0", "train", "training"),
    "test": ("1", "test", "testing", "val", "valid", "validation", "eval", "evaluation"),
}


@dataclass(frozen=True)
class StepLog:
    """One log; layout and micro-batches are None if neither file name nor user gives them."""

    path: Path
    name: str
    layout: Layout | None
    microbatches: int | None
    rank: int | None
    steps: pd.DataFrame
    """Columns epoch, batch, seconds, phase, and loss if the file has it."""
    known_table: int | None = None
    """The number of Raffi's table that was made from this log, if it is one of his."""

    def seconds(self, phase: str) -> pd.Series[float]:
        return self.steps.loc[self.steps["phase"] == phase, "seconds"]

    @property
    def is_sequential(self) -> bool:
        return self.layout == Layout() and self.microbatches == 1


def read_log(path: Path, declared: str | None = None) -> StepLog:
    """Read one log; `declared` is LAYOUT or LAYOUT:MICROBATCHES, by default from the file's name.

    Raises InputError for a missing file or column, or a value that is no number or no phase,
    naming file and line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            places = _find_columns(reader.fieldnames or [], path)
            rows = [
                _parse_row(row, places, f"{path}:{number}")
                for number, row in enumerate(reader, 2)
                if any(row.values())
            ]
    except OSError as error:
        raise InputError(path, None, error.strerror, "a readable CSV file") from None
    except UnicodeDecodeError:
        raise InputError(path, None, "bytes that are not UTF-8", "a CSV file") from None
    if not rows:
        raise InputError(path, None, "no steps", "at least one line under the header")
    steps = pd.DataFrame(rows)
    log = setting_from_name(path.name)
    if declared:
        layout, microbatches = parse_setting(declared)
        log = replace(log, layout=layout, microbatches=microbatches)
    return replace(log, path=path, steps=steps, known_table=table_made_from_log(path))


def _find_columns(header: Sequence[str], path: Path) -> dict[str, str]:
    names = {re.sub(r"\s+", "_", name.strip().lower()): name for name in header if name}
    places = {}
    for key, accepted in _COLUMNS.items():
        found = next((names[name] for name in accepted if name in names), None)
        if found is None:
            raise InputError(
                path, f"column {key}", ", ".join(header) or "nothing", " or ".join(accepted)
            )
        places[key] = found
    if "loss" in names:
        places["loss"] = names["loss"]
    return places


def _parse_row(
    row: dict[str, str], places: dict[str, str], where: str
) -> dict[str, float | str | None]:
    values: dict[str, float | str | None] = {}
    for key, column in places.items():
        text = (row[column] or "").strip()
        if key == "phase":
            values[key] = _parse_phase(text, where)
        elif key == "loss" and not text:
            values[key] = None
        else:
            values[key] = _parse_number(text, column, where, positive=key == "seconds")
    return values


def _parse_phase(text: str, where: str) -> str:
    for phase, accepted in _PHASES.items():
        if text.lower() in accepted:
            return phase
    allowed = ", ".join(name for names in _PHASES.values() for name in names)
    raise InputError(where, "phase", repr(text), allowed)


def _parse_number(text: str, column: str, where: str, *, positive: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(where, column, repr(text), "a number") from None
    if positive and not (value > 0.0 and math.isfinite(value)):
        raise InputError(where, column, repr(text), "seconds above zero")
    return value


def parse_setting(text: str) -> tuple[Layout, int]:
    """Read `pp2:5` or `seq`; raises InputError for another form."""
    name, _, count = text.partition(":")
    if count and not (count.isdigit() and int(count)):
        raise InputError("setting", "micro-batches", repr(count), "a whole number above 0")
    return Layout.parse(name), int(count or 1)


def setting_from_name(name: str) -> StepLog:
    """Layout, micro-batches and rank from a name such as `pipe_0_micro5_stage2.csv`."""
    stem = name.rpartition(".")[0] or name
    layout = None
    stages, replicas = _number_in(r"stages?_?(\d+)", stem), _number_in(r"replicas?_?(\d+)", stem)
    spelled = re.search(r"(?<![a-z0-9])((?:dp\d+-)?pp\d+|dp\d+|seq)(?![a-z0-9])", _spaced(stem))
    if stages or replicas:
        layout = Layout(replicas or 1, stages or 1)
    elif spelled:
        layout = Layout.parse(spelled[1])
    microbatches = _number_in(r"micro(?:batche?s?)?_?(\d+)", stem) or _number_in(
        r"(?<![a-z])m(\d+)", stem
    )
    if layout == Layout() and microbatches is None:
        microbatches = 1
    rank = _number_in(r"(?:pipe|rank)_?(\d+)", stem, zero=True)
    return StepLog(Path(name), stem, layout, microbatches, rank, pd.DataFrame())


def _spaced(stem: str) -> str:
    """Spaces for underscores, except in `dp2_pp2`, which is the layout dp2-pp2."""
    return re.sub(r"(dp\d+)_(pp\d+)", r"\1-\2", stem.lower()).replace("_", " ")


def _number_in(pattern: str, text: str, *, zero: bool = False) -> int | None:
    match = re.search(pattern, text.lower())
    number = int(match[1]) if match else None
    return number if number or zero else None
