"""Reads step logs of other programs: CSV files of many kinds, and hyperfine's JSON.

A row is one step: its seconds, its phase, and perhaps epoch and batch. Nothing is left out without
a note, and InputError names file and line.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.summary.baseline_and_speedup import Baseline
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout

ALIASES = {
    "time": (
        *("batch_time", "step_time", "seconds", "time", "wall", "duration", "iter_time"),
        *("iteration_time", "train_step_time", "time_per_step", "time_per_batch", "latency"),
    ),
    "phase": ("phase", "split", "mode"),
    "epoch": ("epoch",),
    "batch": ("batch", "step", "iteration", "iter", "minibatch", "mini_batch", "batch_idx"),
}
"""Content of a column -> its names, in lower case and without their unit."""
PHASES = {
    **dict.fromkeys(("0", "train", "training", "fit"), "train"),
    **dict.fromkeys(("1", "test", "testing", "val", "valid", "validate", "validation"), "test"),
    **dict.fromkeys(("eval", "evaluation"), "test"),
}
UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanoseconds"), 1e-9),
    **dict.fromkeys(("min", "minutes"), 60.0),
}
"""Unit -> seconds."""
_HEADER = re.compile(
    # An export of wandb has the run before the name. `_min` may be a minimum, so it is no unit.
    rf"(?:.* - )?(.+?)(?:\s*[(\[]\s*(.+?)\s*[)\]]|[\s_](?!min$)({'|'.join(UNITS)}))?"
)
_FEWEST_RISING = 5
"""The fewest differences of neighbours that show a clock."""
_CLOCK_FALLS = 0.1
"""The share of neighbours of which the second is smaller, below which they are a clock's."""
_TIMESTAMP = 1e8
"""Seconds that are no step's but a date's."""


@dataclass(frozen=True)
class Columns:
    """What the user says of the columns; the rest is found in the header."""

    names: Mapping[str, str] = field(default_factory=dict)
    """A key of `ALIASES` -> the name in the header."""
    unit: str | None = None
    """Unit of times whose header and values have none."""
    phase: str | None = None
    """Phase of files and rows that have none."""


@dataclass(frozen=True)
class StepLog:
    """One log; layout and micro-batches are None if neither file name nor user gives them."""

    path: Path
    name: str
    steps: pd.DataFrame
    """Columns seconds and phase."""
    notes: tuple[str, ...] = ()
    """What was left out or taken to be so, a sentence each."""
    has_unit: bool = True
    """Whether the file or the user says the unit of times, which are else taken for seconds."""
    layout: Layout | None = None
    microbatches: int | None = None

    def seconds(self, phase: str) -> pd.Series[float]:
        return self.steps.loc[self.steps["phase"] == phase, "seconds"]


def read_logs(
    path: Path, declared: str | None = None, columns: Columns | None = None
) -> list[StepLog]:
    """Read one file, of which hyperfine's JSON has a log for each command.

    `declared` is LAYOUT or LAYOUT:MICROBATCHES, by default from the file's name. Raises InputError
    that names file and line for a missing column, a value that is no time or no phase, a quote
    that does not close, and times that are a clock's.
    """
    layout, microbatches = setting_in_name(path.stem)
    if declared:
        chosen = Baseline.parse(declared, "--layout")
        layout, microbatches = chosen.layout, chosen.microbatches
    text = _read_text(path)
    found = (
        _read_hyperfine(text, path)
        if path.suffix == ".json"
        else [_read_csv(text, path, columns or Columns())]
    )
    return [replace(log, layout=layout, microbatches=microbatches) for log in found]


def setting_in_name(stem: str) -> tuple[Layout | None, int | None]:
    """Layout and micro-batches in a name such as `pipe_0_micro5_stage2`."""
    stem = stem.lower()

    def number(pattern: str) -> int | None:
        match = re.search(pattern, stem)
        return (int(match[1]) or None) if match else None

    layout = None
    stages, replicas = number(r"stages?_?(\d+)"), number(r"replicas?_?(\d+)")
    spelled = re.search(r"(?<![a-z0-9])((?:dp\d+[-_])?pp\d+|dp\d+|seq)(?![a-z0-9])", stem)
    if stages or replicas:
        layout = Layout(replicas or 1, stages or 1)
    elif spelled:
        layout = Layout.parse(spelled[1].replace("_", "-"))
    microbatches = number(r"(?:micro(?:batche?s?)?_?|(?<![a-z])m)(\d+)")
    return layout, 1 if layout == Layout() and microbatches is None else microbatches


def _read_text(path: Path) -> str:
    """The text of a file in UTF-8, or in UTF-16 with a mark at its start."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(path, None, error.strerror, "a readable CSV file") from None
    utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if utf_16 else "utf-8-sig")
    except UnicodeDecodeError:
        found = "bytes that are no text in UTF-8 or UTF-16"
        raise InputError(path, None, found, "a CSV file") from None


def _read_hyperfine(text: str, path: Path) -> Iterator[StepLog]:
    """The times of each command."""
    try:
        results = json.loads(text)["results"]
        times = [(one["command"], [float(t) for t in one["times"]]) for one in results]
    except (ValueError, KeyError, TypeError):
        allowed = "what hyperfine --export-json writes"
        raise InputError(path, None, "no results with times", allowed) from None
    for number, (command, seconds) in enumerate(times):
        name = path.stem if len(times) == 1 else f"{path.stem}:{number}"
        note = f"{name}: {len(seconds)} runs of `{command}` are taken for training steps"
        yield StepLog(path, name, pd.DataFrame({"seconds": seconds, "phase": "train"}), (note,))


def _read_csv(text: str, path: Path, given: Columns) -> StepLog:
    table = _read_table(text, path)
    places = _find_columns(list(map(str, table)), path, given)
    columns = {key: table.iloc[:, place] for key, place in places.items()}
    times = columns.pop("time")
    notes = []
    if empty := int((times == "").sum()):
        notes.append(f"{path.name}: {empty} of {len(times)} rows have no time and are left out")
        times = times[times != ""]
    if times.empty:
        raise InputError(path, None, "no steps", "at least one row with a time")
    if times.str.contains(",").any():
        notes.append(f"{path.name}: a comma in a number is read as the decimal point")
    seconds, has_unit = _in_seconds(times, path, given.unit)
    steps = pd.DataFrame({"seconds": seconds, **columns}).loc[times.index]
    steps["phase"] = _phases(steps, path, given.phase)
    _check_not_a_clock(steps, str(times.name), path)
    steps, more = _without_repeated(steps, path)
    return StepLog(path, path.stem, steps[["seconds", "phase"]], (*notes, *more), has_unit)


def _read_table(text: str, path: Path) -> pd.DataFrame:
    """All fields as text, in rows that have the numbers of their lines."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line.count('"') % 2:
            # It would swallow the rows after it.
            found = "a quote that does not close on its line"
            raise InputError(f"{path}:{number}", None, found, "quotes in pairs")
    if lines and lines[0].startswith("sep="):
        lines[0] = ""
    separator = max(",;\t|", key=next(filter(str.strip, lines), "").count)
    fields = ([one.strip() for one in row] for row in csv.reader(lines, delimiter=separator))
    rows = {number: row for number, row in enumerate(fields, 1) if any(row)}
    if not rows:
        raise InputError(path, None, "nothing", "a header and at least one row")
    header, *_ = rows.values()
    for number, row in rows.items():
        if len(row) != len(header):
            raise InputError(f"{path}:{number}", None, f"{len(row)} fields", f"{len(header)}")
    table = pd.DataFrame.from_dict(rows, orient="index", dtype=str)
    return table.iloc[1:].set_axis(header, axis="columns")


def _split_header(name: str) -> tuple[str, str | None]:
    """A name in lower case with underscores and without the unit, and the unit."""
    match = _HEADER.fullmatch(name.lower())
    stem, bracketed, suffix = match.groups() if match else (name, None, None)
    return re.sub(r"[\s\-]+", "_", stem), bracketed or suffix


def _find_columns(header: Sequence[str], path: Path, given: Columns) -> dict[str, int]:
    """A key of `ALIASES` -> place of its column; those of time and phase must be there or given."""
    stems = [_split_header(name)[0] for name in header]
    places: dict[str, int] = {}
    for key, aliases in ALIASES.items():
        alias = next((one for one in aliases if one in stems), None)
        if given.names.get(key) in header:
            places[key] = header.index(given.names[key])
        elif key == "time" and alias and stems.count(alias) > 1:
            several = " and ".join(n for n, s in zip(header, stems, strict=True) if s == alias)
            raise InputError(path, "column time", several, "one of them: --columns time=NAME")
        elif alias:
            places[key] = stems.index(alias)
    found = ", ".join(header)
    if "time" not in places:
        some = ", ".join(ALIASES["time"][:4])
        allowed = f"{some}, with a unit or none; or --columns time=NAME"
        raise InputError(path, "column time", found, allowed)
    if "phase" not in places and given.phase is None:
        allowed = f"{', '.join(ALIASES['phase'])}; or --phase train"
        raise InputError(path, "column phase", found, allowed)
    return places


def _in_seconds(
    times: pd.Series[str], path: Path, given: str | None
) -> tuple[pd.Series[float], bool]:
    """Times above zero, and whether their unit is known: from values, header or user."""
    parts = times.str.extract(rf"(.*?)\s*({'|'.join(UNITS)})?$")
    numbers = pd.to_numeric(parts[0].str.replace(",", "."), errors="coerce")
    for line in numbers.index[~(numbers.gt(0.0) & np.isfinite(numbers))][:1]:
        allowed = "a number above zero, with a unit or none"
        raise InputError(f"{path}:{line}", str(times.name), repr(times[line]), allowed)
    stem, unit = _split_header(str(times.name))
    of_header = UNITS.get(unit or stem)
    factors = parts[1].map(UNITS).astype(float)
    known = bool(of_header or given or factors.notna().any())
    return numbers * factors.fillna(of_header or UNITS[given or "s"]), known


def _phases(steps: pd.DataFrame, path: Path, given: str | None) -> pd.Series[str]:
    """The phase of each row: `given` for one without."""
    words = steps.get("phase", pd.Series("", steps.index)).str.lower().replace("", given or "")
    phases = words.map(PHASES)
    for line in phases.index[phases.isna()][:1]:
        raise InputError(f"{path}:{line}", "phase", repr(words[line]), ", ".join(PHASES))
    return phases


def _check_not_a_clock(steps: pd.DataFrame, column: str, path: Path) -> None:
    """Raises InputError for times that hardly ever fall within an epoch, and that double.

    They fall where a clock starts again; of step times nearly half fall.
    """
    seconds = steps["seconds"]
    keys = ["phase", *(["epoch"] if "epoch" in steps else [])]
    changes = seconds.groupby([steps[key] for key in keys]).diff().dropna()
    rises = len(changes) >= _FEWEST_RISING and (changes < 0.0).mean() < _CLOCK_FALLS
    if seconds.min() > _TIMESTAMP or (rises and seconds.max() >= 2.0 * seconds.min()):
        found = "times that never fall, as of a clock"
        raise InputError(path, f"column {column}", found, "the time of each step")


def _without_repeated(steps: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, list[str]]:
    """The rows, of which the last of those with equal epoch, batch and phase stays."""
    keys = ["epoch", "batch", "phase"]
    if not set(keys) <= set(steps):
        return steps, []
    twice = steps.duplicated(keys, keep="last") & steps["epoch"].ne("") & steps["batch"].ne("")
    if not twice.any():
        return steps, []
    (_, same), *_ = steps[steps.duplicated(keys, keep=False)].groupby(keys, sort=False)
    lines = f"lines {same.index[0]} and {same.index[-1]}"
    if 2 * twice.sum() > len(steps):
        found = f"most steps more than once, such as {lines}"
        raise InputError(path, "columns epoch and batch", found, "those of each step: --columns")
    note = (
        f"{path.name}: {twice.sum()} steps are there twice, as after a resume, such as {lines}: "
        "the last of each counts"
    )
    return steps[~twice], [note]
