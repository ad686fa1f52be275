"""Tables and a page of imported step logs: statistics, speedups, bounds, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.render.document import Block, Bullets, Document, Section, Table, Text, page_table
from analysis.render.output_files import atomic_output_folder, write_page, write_table
from analysis.report.read_step_logs import ALIASES, UNITS, Columns, StepLog, read_logs
from analysis.statistics.intervals import ONE_RUN, Interval, ratio_in_words
from analysis.statistics.sample import Sample
from analysis.statistics.warmup import detect_warmup, mark_outliers, step_statistics
from analysis.studies.raffi_logs import printed_statistics
from analysis.studies.study import published_studies
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.core.schedules import bound

_PHASES = ("train", "test")
_MOST_APART = 100.0
"""Times without a unit that are as many times longer or shorter than the baseline's are refused."""


@dataclass(frozen=True)
class ImportedLogs:
    """Logs and their tables."""

    logs: list[StepLog]
    baseline: StepLog | None
    steps: Table
    """One row a log and phase."""
    published: Table | None
    """Published statistics beside those of the logs; None without logs of a published table."""

    @property
    def warnings(self) -> list[str]:
        """What reading left out, speedups above their bound, and misprints, a sentence each."""
        lines = [note for log in self.logs for note in log.notes]
        lines += [
            f"{row['log']}, {row['phase']}: {row['verdict']}"
            for row in self.steps.frame.to_dict("records")
            if row["verdict"].startswith("above the bound")
        ]
        for row in self.published.frame.to_dict("records") if self.published else ():
            if row["verdict"].startswith("misprint"):
                where = f"table {row['table']}, {row['phase']}, {row['quantity']}"
                lines.append(f"{where}: printed {row['printed']:.2f}, {row['verdict']}")
        return lines


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
    declared, names = declared or {}, ", ".join(path.name for path in paths)
    for unknown in sorted(declared.keys() - {n for path in paths for n in (path.name, path.stem)}):
        raise InputError("--layout", None, unknown, names)
    logs = [
        log
        for path in paths
        for log in read_logs(path, declared.get(path.name, declared.get(path.stem)), columns)
    ]
    given = [log.name for log in logs]
    for place, log in enumerate(logs):
        if given.count(log.name) > 1:
            logs[place] = replace(log, name=f"{log.path.parent.name}/{log.name}")
    chosen = _choose_baseline(logs, baseline)
    _check_units(logs, chosen)
    rows = [
        _log_row(log, phase, chosen, drop_warmup)
        for log in logs
        for phase in _PHASES
        if len(log.seconds(phase))
    ]
    against = f"Speedups are over {chosen.name}. " if chosen else ""
    note = (
        f"{against}Standard deviations are the sample's (n - 1), over steps. A log is one run: "
        f"{ONE_RUN}, so there are no intervals. The bound is that of balanced stages, "
        "R S M / (M + S - 1)."
    )
    title = "Step times of imported logs, seconds a mini-batch"
    steps = Table("step_times", title, pd.DataFrame(rows), (note,))
    return ImportedLogs(logs, chosen, steps, _with_published(logs))


def _with_published(logs: Sequence[StepLog]) -> Table | None:
    """A table of Raffi's published statistics beside those of his own logs; None for other logs."""
    rows = [
        {"table": table, "log": log.name, "phase": phase, **row}
        for log in logs
        for phase in _PHASES
        for table, row in printed_statistics(log.path, phase, log.seconds(phase).to_numpy())
    ]
    if not rows:
        return None
    defects = (f"Known defect: {text}" for text in published_studies()["raffi"].defects.values())
    title = "Printed statistics against the logs they were printed from"
    return Table("printed", title, pd.DataFrame(rows), tuple(defects))


def _check_units(logs: Sequence[StepLog], baseline: StepLog | None) -> None:
    for log in logs:
        if baseline is None or log.has_unit:
            continue
        times = log.steps["seconds"].mean() / baseline.steps["seconds"].mean()
        if not 1.0 / _MOST_APART < times < _MOST_APART:
            found = f"times without a unit, {times:.3g} times those of {baseline.path.name}"
            raise InputError(log.path, "column time", found, "--unit, or a unit in the header")


def _choose_baseline(logs: Sequence[StepLog], requested: str | None) -> StepLog | None:
    """The named log, else the sequential one; of several the one with the shortest name."""
    if requested is None:
        sequential = [log for log in logs if (log.layout, log.microbatches) == (Layout(), 1)]
        return min(sequential, key=lambda log: len(log.name), default=None)
    for log in logs:
        if requested in (log.name, log.path.name, str(log.path)):
            return log
    raise InputError("--baseline", None, requested, ", ".join(log.path.name for log in logs))


def _log_row(
    log: StepLog, phase: str, baseline: StepLog | None, drop_warmup: bool
) -> dict[str, Any]:
    def sample_of(one: StepLog) -> Sample:
        seconds = one.seconds(phase).to_numpy()
        return Sample([seconds[detect_warmup(seconds) if drop_warmup else 0 :]])

    sample, speedup, most = sample_of(log), None, None
    if log.layout is not None and log.microbatches is not None:
        most = bound(log.layout.replicas, log.layout.stages, log.microbatches)
    if log is baseline:
        speedup = Interval(1.0, None, None, ONE_RUN)
    elif baseline is not None and log.layout is not None and len(baseline.seconds(phase)):
        # In samples a second: each replica has its own mini-batch.
        share = log.layout.replicas / (baseline.layout.replicas if baseline.layout else 1)
        speedup = sample_of(baseline).over(sample, share)
    return {
        "log": log.name,
        "layout": str(log.layout) if log.layout else None,
        "microbatches": log.microbatches,
        "phase": phase,
        **step_statistics(sample.values),
        "n": sample.values.size,
        "median_s": sample.median.value,
        "warmup_steps": detect_warmup(log.seconds(phase)),
        "outliers": int(mark_outliers(sample.values).sum()),
        "speedup": speedup.value if speedup else None,
        "bound": most,
        "verdict": _verdict(log, baseline, speedup, most),
    }


def _verdict(
    log: StepLog, baseline: StepLog | None, speedup: Interval | None, most: float | None
) -> str:
    """A log is one run, so how far above a bound another run would be is not known."""
    if log is baseline:
        return "baseline"
    if baseline is None or speedup is None:
        missing = "unknown layout, use --layout" if log.layout is None else "no baseline"
        return f"no speedup: {missing}"
    words = ratio_in_words(speedup)
    if (log.layout, log.microbatches) == (baseline.layout, baseline.microbatches):
        return f"the baseline's setting run again; {words}: equal settings differ by this much"
    if most is None:
        return "unknown bound: the number of micro-batches is not known"
    if speedup.value > most:
        return f"above the bound: {speedup.value:.3f} beside {most:.3f} at most; {ONE_RUN}"
    return f"within the bound; {words}"


def list_csv_files(paths: Sequence[Path]) -> list[Path]:
    """The files as given, and the CSV files of folders; raises InputError for a folder without."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.csv")) if path.is_dir() else [path]
        if not found:
            raise InputError(path, None, "no CSV file", "a folder with .csv files")
        files += found
    return files


def parse_columns(texts: Sequence[str], unit: str | None, phase: str | None) -> Columns:
    """Read time=NAME and the like; raises InputError for another form, unit or phase."""
    names = parse_pairs("--columns", texts, " or ".join(f"{key}=NAME" for key in ALIASES))
    for key in names.keys() - ALIASES.keys():
        raise InputError("--columns", None, repr(key), ", ".join(ALIASES))
    if unit is not None and unit not in UNITS:
        raise InputError("--unit", None, unit, ", ".join(UNITS))
    if phase is not None and phase not in _PHASES:
        raise InputError("--phase", None, phase, " or ".join(_PHASES))
    return Columns(names, unit, phase)


def parse_pairs(option: str, texts: Sequence[str], allowed: str) -> dict[str, str]:
    """Read KEY=VALUE, without `=` in the value; raises InputError for another form."""
    pairs = {}
    for text in texts:
        key, _, value = text.rpartition("=")
        if not key or not value:
            raise InputError(option, None, repr(text), allowed)
        pairs[key] = value
    return pairs


def write_import_page(imported: ImportedLogs, out: Path) -> Path:
    """Write tables, report.md and report.html into `out`; returns report.html.

    Files of other names in `out` stay. Raises InputError where it cannot be written.
    """
    steps, published, logs = imported.steps, imported.published, imported.logs
    verdict = [
        Text(line, "bad" if "above the bound" in line or "misprint" in line else "plain")
        for line in imported.warnings
    ]
    speed: tuple[Block, ...] = (page_table(steps.frame, steps.title), *map(Text, steps.notes))
    sections = [
        Section("verdict", "Verdict", tuple(verdict)),
        Section("steps", "Step times and speedups", speed),
    ]
    if published is not None:
        citation = Text(published_studies()["raffi"].citation)
        beside = page_table(published.frame, "Published statistics and those of the log")
        sections.append(Section("published", "Published and logged", (citation, beside)))
        sections.append(Section("defects", "Known defects", (Bullets(published.notes),)))
    names = ", ".join(log.name for log in logs[:8])
    more = f" and {len(logs) - 8} more" if len(logs) > 8 else ""
    with atomic_output_folder(out) as folder:
        for made in filter(None, (steps, published)):
            write_table(made, folder)
        page = Document("Imported step logs", names + more, tuple(sections), folder)
        write_page(page, folder)
    return out / "report.html"
