"""The step-time table of imported logs: statistics, speedups with intervals, bound, verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.render.document import Table
from analysis.report.read_step_logs import UNITS, Columns, StepLog, read_logs
from analysis.statistics.intervals import ONE_RUN, Interval, ratio_in_words
from analysis.statistics.sample import Sample
from analysis.statistics.warmup import detect_warmup, effective_n, mark_outliers, step_statistics
from analysis.studies.study import printed_beside_log, published_studies, table_made_from_log
from gnnhpc.core.errors import InputError
from gnnhpc.core.schedules import bound

PHASES = ("train", "test")
_MOST_APART = 100.0
"""Times without a unit that are as many times longer or shorter than the baseline's are refused."""


@dataclass(frozen=True)
class ImportedLogs:
    """Logs and their tables."""

    logs: list[StepLog]
    baseline: StepLog | None
    steps: Table
    """One row a log and phase."""
    published_statistics: Table | None
    """Published statistics beside those of the logs; None without logs of a published table."""

    @property
    def tables(self) -> list[Table]:
        return [table for table in (self.steps, self.published_statistics) if table is not None]

    @property
    def warnings(self) -> list[str]:
        """What reading left out, speedups above their bound, and misprints, a sentence each."""
        lines = [note for log in self.logs for note in log.notes]
        lines += [
            f"{row['log']}, {row['phase']}: {row['verdict']}"
            for _, row in self.steps.frame.iterrows()
            if str(row["verdict"]).startswith("above the bound")
        ]
        if self.published_statistics is None:
            return lines
        wrong = self.published_statistics.frame[
            self.published_statistics.frame["verdict"].str.startswith("misprint")
        ]
        return lines + [
            f"table {row['table']}, {row['phase']}, {row['quantity']}: printed "
            f"{row['printed']:.2f}, {row['verdict']}"
            for _, row in wrong.iterrows()
        ]


def import_logs(
    paths: Sequence[Path],
    *,
    declared: Mapping[str, str] | None = None,
    baseline: str | None = None,
    drop_warmup: bool = False,
    columns: Columns | None = None,
) -> ImportedLogs:
    """Read logs and make their tables.

    `declared` maps a file name to LAYOUT:MICROBATCHES, for names that do not contain them;
    `baseline` names the log to compare with, by default the sequential one. All steps count, as
    in published tables, unless `drop_warmup`. Speedups assume that a replica's mini-batch has the
    same size in every log. Raises InputError for logs that cannot be read, for a baseline or a
    declared name that is not among them, and for times without a unit that are far from the
    baseline's.
    """
    declared = declared or {}
    unknown = declared.keys() - {name for path in paths for name in (path.name, path.stem)}
    if unknown:
        names = ", ".join(path.name for path in paths)
        raise InputError("--layout", None, sorted(unknown)[0], names)
    logs = [
        log
        for path in paths
        for log in read_logs(path, declared.get(path.name, declared.get(path.stem)), columns)
    ]
    logs = _distinct(logs)
    chosen = choose_baseline(logs, baseline)
    _check_units(logs, chosen)
    rows = [
        _log_row(log, phase, chosen, drop_warmup)
        for log in logs
        for phase in PHASES
        if len(log.seconds(phase))
    ]
    return ImportedLogs(logs, chosen, _steps_table(rows, chosen), compare_with_published(logs))


def _check_units(logs: Sequence[StepLog], baseline: StepLog | None) -> None:
    for log in logs:
        if baseline is None or log.has_unit:
            continue
        times = log.steps["seconds"].mean() / baseline.steps["seconds"].mean()
        if not 1.0 / _MOST_APART < times < _MOST_APART:
            found = f"times without a unit, {times:.3g} times those of {baseline.path.name}"
            allowed = f"--unit {', '.join(UNITS)}, or a unit in the header"
            raise InputError(log.path, "column time", found, allowed)


def _distinct(logs: list[StepLog]) -> list[StepLog]:
    """Put the folder's name before file names that occur twice."""
    names = [log.name for log in logs]
    return [
        replace(log, name=f"{log.path.parent.name}/{log.name}")
        if names.count(log.name) > 1
        else log
        for log in logs
    ]


def choose_baseline(logs: Sequence[StepLog], requested: str | None) -> StepLog | None:
    """The named log, else the sequential one; of several the one with the shortest name."""
    if requested is not None:
        for log in logs:
            if requested in (log.name, log.path.name, str(log.path)):
                return log
        raise InputError("--baseline", None, requested, ", ".join(log.path.name for log in logs))
    sequential = [log for log in logs if log.is_sequential]
    return min(sequential, key=lambda log: len(log.name), default=None)


def _sample(log: StepLog, phase: str, drop_warmup: bool) -> Sample:
    seconds = log.seconds(phase).to_numpy()
    return Sample([seconds[detect_warmup(seconds) if drop_warmup else 0 :]])


def _log_row(
    log: StepLog, phase: str, baseline: StepLog | None, drop_warmup: bool
) -> dict[str, Any]:
    sample, all_seconds = _sample(log, phase, drop_warmup), log.seconds(phase).to_numpy()
    speedup, bound_value = None, None
    layout, microbatches, rank = log.setting
    if layout is not None and microbatches is not None:
        bound_value = bound(layout.replicas, layout.stages, microbatches)
    if baseline is not None and layout is not None and len(baseline.seconds(phase)):
        speedup = _speedup(log, sample, baseline, phase, drop_warmup)
    return {
        "log": log.name,
        "layout": str(layout) if layout else None,
        "microbatches": microbatches,
        "rank": rank,
        "phase": phase,
        **step_statistics(sample.values),
        "n": sample.values.size,
        "median_s": sample.median.value,
        "warmup_steps": detect_warmup(all_seconds),
        "outliers": int(mark_outliers(sample.values).sum()),
        "n_effective": effective_n(sample.values),
        "speedup": speedup.value if speedup else None,
        "bound": bound_value,
        "verdict": _verdict(log, baseline, speedup, bound_value),
    }


def _speedup(
    log: StepLog, sample: Sample, baseline: StepLog, phase: str, drop_warmup: bool
) -> Interval:
    """The speedup in samples a second: each replica has its own mini-batch."""
    if log is baseline:
        return Interval(1.0, None, None, ONE_RUN)
    assert log.setting.layout is not None
    mine = log.setting.layout.replicas
    theirs = baseline.setting.layout.replicas if baseline.setting.layout else 1
    return _sample(baseline, phase, drop_warmup).over(sample, mine / theirs)


def _verdict(
    log: StepLog, baseline: StepLog | None, speedup: Interval | None, bound_value: float | None
) -> str:
    if log is baseline:
        return "baseline"
    if baseline is None or speedup is None:
        missing = "unknown layout, use --layout" if log.setting.layout is None else "no baseline"
        return f"no speedup: {missing}"
    if log.setting[:2] == baseline.setting[:2]:
        words = ratio_in_words(speedup)
        return f"the baseline's setting run again; {words}: equal settings differ by this much"
    return _against_bound(speedup, bound_value)


def _against_bound(speedup: Interval, bound_value: float | None) -> str:
    """A log is one run, so how far above a bound another run would be is not known."""
    if bound_value is None:
        return "unknown bound: the number of micro-batches is not known"
    if speedup.value > bound_value:
        return f"above the bound: {speedup.value:.3f} beside {bound_value:.3f} at most; {ONE_RUN}"
    return f"within the bound; {ratio_in_words(speedup)}"


def _steps_table(rows: list[dict[str, Any]], baseline: StepLog | None) -> Table:
    against = f"Speedups are over {baseline.name}. " if baseline else ""
    return Table(
        "step_times",
        "Step times of imported logs, seconds a mini-batch",
        pd.DataFrame(rows),
        (
            f"{against}Standard deviations are the sample's (n - 1), over steps. A log is one run: "
            f"{ONE_RUN}, so there are no intervals. The bound is that of balanced stages, "
            "R S M / (M + S - 1).",
        ),
    )


def list_csv_files(paths: Sequence[Path]) -> list[Path]:
    """The files as given, and the CSV files of folders; raises InputError for a folder without."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.csv")) if path.is_dir() else [path]
        if not found:
            raise InputError(path, None, "no CSV file", "a folder with .csv files")
        files += found
    return files


def compare_with_published(logs: Sequence[StepLog]) -> Table | None:
    """A table of Raffi's published statistics beside those of his own logs; None for other logs."""
    rows = [
        {
            "table": table,
            "log": log.name,
            "phase": phase,
            "quantity": quantity,
            "printed": float(printed),
            "from_log": value,
            "verdict": verdict,
        }
        for log in logs
        if (table := table_made_from_log(log.path)) is not None
        for phase in PHASES
        for quantity, printed, value, verdict in printed_beside_log(
            table, phase, log.seconds(phase).to_numpy()
        )
    ]
    if not rows:
        return None
    return Table(
        "printed",
        "Printed statistics against the logs they were printed from",
        pd.DataFrame(rows),
        tuple(f"Known defect: {text}" for text in published_studies()["raffi"].defects.values()),
    )


def parse_columns(texts: Sequence[str], unit: str | None, phase: str | None) -> Columns:
    """Read time=NAME and the like; raises InputError for another form, unit or phase."""
    names = {}
    for text in texts:
        key, equals, name = text.partition("=")
        if not equals or key not in ("time", "epoch", "batch", "phase", "loss"):
            allowed = "time=NAME, epoch=NAME, batch=NAME, phase=NAME or loss=NAME"
            raise InputError("--columns", None, repr(text), allowed)
        names[key] = name
    if unit is not None and unit not in UNITS:
        raise InputError("--unit", None, unit, ", ".join(UNITS))
    if phase is not None and phase not in PHASES:
        raise InputError("--phase", None, phase, " or ".join(PHASES))
    return Columns(names, unit, phase)


def parse_declared(texts: Sequence[str]) -> dict[str, str]:
    """Read NAME=LAYOUT[:MICROBATCHES]; raises InputError for another form."""
    declared = {}
    for text in texts:
        match = re.fullmatch(r"(.+)=([^=]+)", text)
        if match is None:
            raise InputError(
                "--layout", None, repr(text), "FILE=LAYOUT or FILE=LAYOUT:MICROBATCHES"
            )
        declared[match[1]] = match[2]
    return declared
