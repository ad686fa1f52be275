"""A table of step times and speedups from step logs of any program, which are CSV files.

A log is one run. A row is one step, with its time in a column of `TIMES` and its phase in a column
`phase`; a log without phases is of training. Other columns are ignored. The file's name contains
layout and micro-batches, as `pp2_m5.csv` does.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.render.document import Block, Document, Section, Table, Text, page_table
from analysis.render.pages import atomic_output_folder, write_page, write_table
from analysis.statistics.intervals import ONE_RUN
from analysis.statistics.sample import Sample
from analysis.statistics.warmup import detect_warmup, mark_outliers, step_statistics
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.core.schedules import bound

TIMES = {"seconds": 1.0, "step_time_s": 1.0, "batch_time(s)": 1.0, "step_time_ms": 1e-3}
"""Name of the column of times -> seconds of its unit."""
PHASES = {"train": "train", "0": "train", "test": "test", "1": "test"}
_NOTE = (
    f"A log is one run: {ONE_RUN}, so there are no intervals. Standard deviations are the sample's "
    "(n - 1), over steps. All steps count. Speedups over the log of seq are of samples a second, "
    "for mini-batches of one size a replica; the bound is that of balanced stages, R S M / (M + S "
    "- 1)."
)


@dataclass(frozen=True)
class StepLog:
    """The steps of one run."""

    name: str
    layout: Layout
    microbatches: int
    steps: pd.DataFrame
    """Columns seconds and phase."""

    def sample(self, phase: str) -> Sample:
        return Sample([self.steps.loc[self.steps["phase"] == phase, "seconds"].to_numpy()])


def import_logs(paths: Sequence[Path]) -> Table:
    """The table of the logs, and of the CSV files in folders, with a row a log and phase.

    Speedups are over the log of `seq` with the shortest name. Raises InputError for a file that
    cannot be read, or whose name has no layout.
    """
    files = [f for path in paths for f in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]
    if not files:
        raise InputError(paths[0], None, "no CSV file", "a folder with .csv files")
    logs = [read_log(file) for file in files]
    sequential = [log for log in logs if (log.layout, log.microbatches) == (Layout(), 1)]
    base = min(sequential, key=lambda log: len(log.name), default=None)
    rows = [
        _log_row(log, phase, base)
        for log in logs
        for phase in ("train", "test")
        if (log.steps["phase"] == phase).any()
    ]
    title = "Step times of imported logs, seconds a mini-batch"
    return Table("step_times", title, pd.DataFrame(rows), (_NOTE,))


def read_log(path: Path) -> StepLog:
    """Read one file; raises InputError with its line for what is no step."""
    layout, microbatches = setting_in_name(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            column = next((name for name in TIMES if name in (reader.fieldnames or ())), None)
            if column is None:
                found = ", ".join(reader.fieldnames or ()) or "nothing"
                raise InputError(path, "column of times", found, ", ".join(TIMES))
            steps = [_read_step(row, column, f"{path}:{reader.line_num}") for row in reader]
    except OSError as error:
        raise InputError(path, None, error.strerror, "a readable CSV file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(path, None, str(error), "a CSV file in UTF-8") from None
    if not steps:
        raise InputError(path, None, "no steps", "at least one row with a time")
    frame = pd.DataFrame(steps, columns=["seconds", "phase"])
    return StepLog(path.stem, layout, microbatches, frame)


def _read_step(row: Mapping[str, str | None], column: str, where: str) -> tuple[float, str]:
    text, phase = row[column] or "", row.get("phase", "train") or ""
    try:
        seconds = float(text) * TIMES[column]
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds < math.inf:
        raise InputError(where, column, repr(text), "a number above zero")
    if phase not in PHASES:
        raise InputError(where, "phase", repr(phase), ", ".join(PHASES))
    return seconds, PHASES[phase]


def setting_in_name(path: Path) -> tuple[Layout, int]:
    """Layout and micro-batches in a name such as `dp2-pp2_m5` or `pipe_0_micro5_stage2`; one
    micro-batch unless named. Raises InputError for a name without a layout."""
    spelled = re.search(r"(?<![a-z0-9])((?:dp\d+-)?pp\d+|dp\d+|seq)(?![a-z0-9])", path.stem)
    stages = re.search(r"stage(\d+)", path.stem)
    if spelled is None and stages is None:
        raise InputError(path, "file name", path.name, "a layout in it, such as dp2-pp2_m5.csv")
    microbatches = re.search(r"(?:micro|(?<![a-z])m)(\d+)", path.stem)
    layout = Layout.parse(spelled[1] if spelled else f"pp{stages[1]}" if stages else "")
    return layout, int(microbatches[1]) if microbatches else 1


def _log_row(log: StepLog, phase: str, base: StepLog | None) -> dict[str, Any]:
    sample, speedup = log.sample(phase), None
    most = bound(log.layout.replicas, log.layout.stages, log.microbatches)
    if base is not None and base.sample(phase).values.size:
        speedup = base.sample(phase).over(sample, log.layout.replicas).value
    verdict = "within the bound"
    if log is base or speedup is None:
        verdict = "baseline" if log is base else "no log of seq to compare with"
    elif speedup > most:
        verdict = f"above the bound: {speedup:.3f}, at most {most:.3f}"
    return {
        "log": log.name,
        "layout": str(log.layout),
        "microbatches": log.microbatches,
        "phase": phase,
        "n": sample.values.size,
        **step_statistics(sample.values),
        "median_s": sample.median.value,
        "warmup_steps": detect_warmup(sample.values),
        "outliers": int(mark_outliers(sample.values).sum()),
        "speedup": speedup,
        "bound": most,
        "verdict": verdict,
    }


def write_import_page(table: Table, out: Path) -> Path:
    """Write the table, report.md and report.html into `out`; returns report.html.

    Files of other names in `out` stay. Raises InputError where it cannot be written.
    """
    blocks: tuple[Block, ...] = (page_table(table.frame, table.title), *map(Text, table.notes))
    names = ", ".join(dict.fromkeys(table.frame["log"]))
    section = Section("steps", "Step times and speedups", blocks)
    with atomic_output_folder(out) as folder:
        write_table(table, folder)
        write_page(Document("Imported step logs", names, (section,), folder), folder)
    return out / "report.html"
