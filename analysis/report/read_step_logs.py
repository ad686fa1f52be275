"""Reads step logs of other programs: CSV files of many kinds, and hyperfine's JSON.

A row is one step: its seconds, and perhaps epoch, batch, phase and loss. Nothing is left out or
guessed without a line: `StepLog.notes` has what was, and InputError names file and line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.report.csv_rows import csv_rows, read_text
from analysis.report.setting_in_file_name import Setting, setting_from_name
from analysis.summary.baseline_and_speedup import Baseline
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout

_NAMES = {
    "time": (
        *("batch_time", "step_time", "seconds", "time", "wall", "duration", "iter_time"),
        *("iteration_time", "train_step_time", "time_per_step", "time_per_batch", "latency"),
    ),
    "epoch": ("epoch",),
    "batch": ("batch", "step", "iteration", "iter", "minibatch", "mini_batch", "batch_idx"),
    "phase": ("phase", "split", "mode"),
    "loss": ("loss", "train_loss", "train_loss_step"),
}
"""Content of a column -> its names, compared in lower case and without their unit."""
_PHASES = {
    "train": ("0", "train", "training", "fit"),
    "test": (
        *("1", "test", "testing", "val", "valid", "validate", "validation", "eval", "evaluation"),
    ),
}
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0}
_UNIT_WORDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nanoseconds"), "ns"),
    **dict.fromkeys(("min", "minutes"), "min"),
}
_SUMMARY = {"command", "mean", "stddev"}
"""Columns of hyperfine's CSV, which has no single times."""
_FEWEST_RISING = 6
"""The fewest rows of which a column that never falls is an error."""
_CLOCK_FALLS = 0.1
"""The share of neighbours of which the second is smaller, below which they are a clock's."""
_TIMESTAMP = 1e8
"""Seconds that are no step's but a date's."""


@dataclass(frozen=True)
class Columns:
    """What the user says of the columns; the rest is found in the header."""

    names: Mapping[str, str] = field(default_factory=dict)
    """time, epoch, batch, phase or loss -> the name in the header."""
    unit: str | None = None
    """Unit of times whose header and values have none."""
    phase: str | None = None
    """Phase of files and rows that have none."""


@dataclass(frozen=True)
class StepLog:
    """One log; layout and micro-batches are None if neither file name nor user gives them."""

    path: Path
    name: str
    setting: Setting
    steps: pd.DataFrame
    """Columns epoch, batch, seconds, phase, and loss if the file has it."""
    notes: tuple[str, ...] = ()
    """What was left out or taken to be so, a sentence each."""
    has_unit: bool = True
    """Whether the file or the user says the unit of times, which are else taken for seconds."""

    def seconds(self, phase: str) -> pd.Series[float]:
        return self.steps.loc[self.steps["phase"] == phase, "seconds"]

    @property
    def is_sequential(self) -> bool:
        return (self.setting.layout, self.setting.microbatches) == (Layout(), 1)


def read_logs(
    path: Path, declared: str | None = None, columns: Columns | None = None
) -> list[StepLog]:
    """Read one file, of which hyperfine's JSON has a log for each command.

    `declared` is LAYOUT or LAYOUT:MICROBATCHES, by default from the file's name. Raises InputError
    that names file and line for a missing column, a value that is no number or no phase, a quote
    that does not close, and times that are a clock's.
    """
    text = read_text(path)
    setting = setting_from_name(path.name)
    if declared:
        chosen = Baseline.parse(declared, "--layout")
        setting = Setting(chosen.layout, chosen.microbatches)
    if path.suffix == ".json":
        return list(_hyperfine(text, path, setting))
    return [_read_csv(text, path, setting, columns or Columns())]


def _hyperfine(text: str, path: Path, setting: Setting) -> Iterator[StepLog]:
    """The times of each command."""
    try:
        results = json.loads(text)["results"]
        times = [(str(one["command"]), [float(t) for t in one["times"]]) for one in results]
    except (ValueError, KeyError, TypeError):
        allowed = "what hyperfine --export-json writes"
        raise InputError(path, None, "no results with times", allowed) from None
    for number, (command, seconds) in enumerate(times):
        steps = pd.DataFrame({"epoch": 0.0, "batch": range(len(seconds)), "seconds": seconds})
        name = path.stem if len(times) == 1 else f"{path.stem}:{number}"
        note = f"{name}: {len(seconds)} runs of `{command}` are taken for training steps"
        yield StepLog(path, name, setting, steps.assign(phase="train"), (note,))


def _read_csv(text: str, path: Path, setting: Setting, given: Columns) -> StepLog:
    rows = list(csv_rows(text, path))
    if not rows:
        raise InputError(path, None, "nothing", "a header and at least one row")
    (_, header), *body = rows
    places = _find_columns(header, path, given)
    for line, row in body:
        if len(row) != len(header):
            raise InputError(f"{path}:{line}", None, f"{len(row)} fields", f"{len(header)}")
    unit = _unit_of(header[places["time"]])
    found, skipped, comma, with_unit = [], 0, False, unit is not None
    for line, row in body:
        where = f"{path}:{line}"
        cell = row[places["time"]].strip()
        if not cell:
            skipped += 1
            continue
        seconds, cell_unit = _parse_time(cell, header[places["time"]], where)
        comma, with_unit = comma or "," in cell, with_unit or cell_unit is not None
        factor = UNITS[cell_unit or unit or given.unit or "s"]
        values: dict[str, Any] = {"line": line, "seconds": factor * seconds}
        values["phase"] = _phase_of(row, places, given, where)
        for name in ("epoch", "batch", "loss"):
            if name in places:
                values[name] = _parse_number(row[places[name]].strip(), name, where)
        found.append(values)
    if not found:
        raise InputError(path, None, "no steps", "at least one row with a time")
    steps = pd.DataFrame(found)
    for name in ("epoch", "batch"):
        steps[name] = steps[name] if name in steps else float("nan")
    _check_not_a_clock(steps, header[places["time"]], path)
    steps, notes = _without_repeated(steps, path)
    if skipped:
        notes.append(f"{path.name}: {skipped} of {len(body)} rows have no time and are left out")
    if comma:
        notes.append(f"{path.name}: a comma in a number is read as the decimal point")
    return StepLog(
        path,
        path.stem,
        setting,
        steps.drop(columns="line").reset_index(drop=True),
        tuple(notes),
        with_unit or given.unit is not None,
    )


def _find_columns(header: Sequence[str], path: Path, given: Columns) -> dict[str, int]:
    """Content -> place of its column; those for time and phase must be there or be given."""
    plain = [_plain(name) for name in header]
    places: dict[str, int] = {}
    for key, accepted in _NAMES.items():
        requested = given.names.get(key)
        if requested is not None and requested in header:
            places[key] = list(header).index(requested)
            continue
        found = [plain.index(name) for name in accepted if name in plain]
        if key == "time" and plain.count(plain[found[0]] if found else "") > 1:
            several = " and ".join(n for n, p in zip(header, plain, strict=True) if p in accepted)
            raise InputError(path, "column time", several, "one of them: --columns time=NAME")
        if found:
            places[key] = found[0]
    if "time" not in places:
        raise InputError(path, "column time", ", ".join(header), _how_to_name_time(header))
    if "phase" not in places and given.phase is None:
        raise InputError(
            path, "column phase", ", ".join(header), "phase, split or mode; or --phase train"
        )
    return places


def _how_to_name_time(header: Sequence[str]) -> str:
    names = {name.strip().lower() for name in header}
    if names >= _SUMMARY:
        return "the time of each run: hyperfine --export-json, and that file"
    if names >= {"wall time", "value"}:
        return "of TensorBoard's export Value, if these are times: --columns time=Value"
    return f"{', '.join(_NAMES['time'][:4])}, with a unit or none; or --columns time=NAME"


def _plain(name: str) -> str:
    """A header's name in lower case without unit, and without the run in an export of wandb."""
    name = re.sub(r".* - ", "", name.strip().lower())
    name = re.sub(r"[\s\-]+", "_", re.sub(r"\s*[(\[].*[)\]]$", "", name))
    stem, _, word = name.rpartition("_")
    return stem if stem and word in _UNIT_WORDS and word != "min" else name


def _unit_of(name: str) -> str | None:
    """The unit at the end of a header's name; `_min` may be a minimum, so it is none."""
    pattern = r"[(\[]\s*(\S+?)\s*[)\]]$|(?:^|_)(?!min$)([^_\s()\[\]]+)$"
    match = re.search(pattern, re.sub(r"\s+", "_", name.strip().lower()))
    return _UNIT_WORDS.get(match[1] or match[2]) if match else None


def _phase_of(row: Sequence[str], places: Mapping[str, int], given: Columns, where: str) -> str:
    text = row[places["phase"]].strip().lower() if "phase" in places else ""
    text = text or (given.phase or "")
    for phase, accepted in _PHASES.items():
        if text in accepted:
            return phase
    allowed = ", ".join(name for names in _PHASES.values() for name in names)
    raise InputError(where, "phase", repr(text), allowed)


def _parse_time(text: str, column: str, where: str) -> tuple[float, str | None]:
    """A time above zero, and the unit that follows it."""
    match = re.fullmatch(r"(\S+?)\s*([a-z\u00b5\u03bc]+)?", text)
    unit = _UNIT_WORDS.get(match[2]) if match and match[2] else None
    value = _parse_number(match[1] if match and unit else text, column, where)
    if not (value > 0.0 and math.isfinite(value)):
        raise InputError(where, column, repr(text), "a time above zero")
    return value, unit


def _parse_number(text: str, column: str, where: str) -> float:
    """A number, with a point or a comma; nan for an empty field."""
    if not text:
        return math.nan
    if "." not in text and text.count(",") == 1:
        text = text.replace(",", ".")
    try:
        return float(text)
    except ValueError:
        raise InputError(where, column, repr(text), "a number") from None


def _check_not_a_clock(steps: pd.DataFrame, column: str, path: Path) -> None:
    """Raises InputError for times that hardly ever fall within an epoch and double in one.

    They fall where a clock starts again; of step times nearly half fall.
    """
    epochs = steps.groupby(["phase", "epoch"], dropna=False)["seconds"]
    long = [part.to_numpy() for _, part in epochs if len(part) >= _FEWEST_RISING]
    pairs = sum(len(times) - 1 for times in long)
    falls = sum(int((times[1:] < times[:-1]).sum()) for times in long)
    doubles = any(times.max() >= 2 * times[0] for times in long)
    stamps = steps["seconds"].min() > _TIMESTAMP
    if stamps or (pairs and doubles and falls < _CLOCK_FALLS * pairs):
        found = "times that never fall, as of a clock"
        raise InputError(path, f"column {column}", found, "the time of each step")


def _without_repeated(steps: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, list[str]]:
    """The rows, of which the last of those with equal epoch, batch and phase stays, as after a
    resume."""
    keys = ["epoch", "batch", "phase"]
    known = steps["epoch"].notna() & steps["batch"].notna()
    twice = known & steps.duplicated(keys, keep="last")
    if not twice.any():
        return steps, []
    first = steps[twice].iloc[0]
    same = steps[(steps[keys] == first[keys]).all(axis=1)]
    lines = f"lines {same['line'].iloc[0]} and {same['line'].iloc[-1]}"
    if 2 * twice.sum() > len(steps):
        found = f"most steps more than once, such as {lines}"
        raise InputError(path, "columns epoch and batch", found, "those of each step: --columns")
    note = (
        f"{path.name}: {twice.sum()} steps are there twice, as after a resume, such as {lines}: "
        "the last of each counts"
    )
    return steps[~twice], [note]
