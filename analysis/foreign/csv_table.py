"""The step-time table of imported logs: statistics, speedups with intervals, bound, verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.foreign.csv_logs import StepLog, read_log
from analysis.foreign.published_beside_logs import compare_with_published
from analysis.render.named_table import NamedTable
from analysis.statistics.intervals import ONE_RUN, Interval, ratio_in_words
from analysis.statistics.sample import Sample
from analysis.statistics.warmup import detect_warmup, effective_n, mark_outliers, step_statistics
from gnnhpc.core.bound_and_bubble import bound
from gnnhpc.core.errors import InputError

PHASES = ("train", "test")


@dataclass(frozen=True)
class ImportedLogs:
    """Logs and their tables."""

    logs: list[StepLog]
    baseline: StepLog | None
    steps: NamedTable
    """One row a log and phase."""
    published_statistics: NamedTable | None
    """Published statistics beside those of the logs; None without logs of a published table."""

    @property
    def tables(self) -> list[NamedTable]:
        return [table for table in (self.steps, self.published_statistics) if table is not None]

    @property
    def warnings(self) -> list[str]:
        """Speedups above their bound, and misprints in published tables, a sentence each."""
        lines = [
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
    declared: dict[str, str] | None = None,
    baseline: str | None = None,
    drop_warmup: bool = False,
) -> ImportedLogs:
    """Read logs and make their tables.

    `declared` maps a file name to LAYOUT:MICROBATCHES, for names that do not contain them;
    `baseline` names the log to compare with, by default the sequential one. All steps count, as
    in published tables, unless `drop_warmup`. Speedups assume that a replica's mini-batch has the
    same size in every log. Raises InputError for logs that cannot be read, and for a baseline or
    a declared name that is not among them.
    """
    declared = declared or {}
    logs = [read_log(path, declared.get(path.name, declared.get(path.stem))) for path in paths]
    unknown = declared.keys() - {name for path in paths for name in (path.name, path.stem)}
    if unknown:
        names = ", ".join(path.name for path in paths)
        raise InputError("--layout", None, sorted(unknown)[0], names)
    logs = _distinct(logs)
    chosen = choose_baseline(logs, baseline)
    rows = [
        _log_row(log, phase, chosen, drop_warmup)
        for log in logs
        for phase in PHASES
        if len(log.seconds(phase))
    ]
    return ImportedLogs(logs, chosen, _steps_table(rows, chosen), compare_with_published(logs))


def _distinct(logs: list[StepLog]) -> list[StepLog]:
    """Put the folder's name before file names that occur twice."""
    names = [log.name for log in logs]
    return [
        StepLog(**{**vars(log), "name": f"{log.path.parent.name}/{log.name}"})
        if names.count(log.name) > 1
        else log
        for log in logs
    ]


def choose_baseline(logs: Sequence[StepLog], wanted: str | None) -> StepLog | None:
    """The named log, else the sequential one; of several the one with the shortest name."""
    if wanted is not None:
        for log in logs:
            if wanted in (log.name, log.path.name, str(log.path)):
                return log
        raise InputError("--baseline", None, wanted, ", ".join(log.path.name for log in logs))
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
    if log.layout is not None and log.microbatches is not None:
        bound_value = bound(log.layout.replicas, log.layout.stages, log.microbatches)
    if baseline is not None and log.layout is not None and len(baseline.seconds(phase)):
        speedup = _speedup(log, sample, baseline, phase, drop_warmup)
    return {
        "log": log.name,
        "layout": str(log.layout) if log.layout else None,
        "microbatches": log.microbatches,
        "rank": log.rank,
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
    assert log.layout is not None
    mine = log.layout.replicas
    theirs = baseline.layout.replicas if baseline.layout else 1
    return _sample(baseline, phase, drop_warmup).mean_over(sample, mine / theirs)


def _verdict(
    log: StepLog, baseline: StepLog | None, speedup: Interval | None, bound_value: float | None
) -> str:
    if log is baseline:
        return "baseline"
    if baseline is None or speedup is None:
        missing = "unknown layout, use --layout" if log.layout is None else "no baseline"
        return f"no speedup: {missing}"
    if (log.layout, log.microbatches) == (baseline.layout, baseline.microbatches):
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


def _steps_table(rows: list[dict[str, Any]], baseline: StepLog | None) -> NamedTable:
    against = f"Speedups are over {baseline.name}. " if baseline else ""
    return NamedTable(
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
