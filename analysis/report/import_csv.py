"""A table of step times and speedups from step logs of any program, which are CSV files.

A log is one run. A row is one step, with its time in a column of `TIMES` and its phase in a column
`phase`; a log without phases is of training. Other columns are ignored. The file's name contains
layout and micro-batches, as `pp2_m5.csv` does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.render.document import Block, Document, Section, Table, Text
from analysis.render.formats import atomic_output_folder, write_page, write_table
from analysis.statistics.find_warmup_end import detect_warmup, mark_outliers
from analysis.statistics.intervals import ONE_RUN
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


def import_logs(paths: Sequence[Path]) -> Table:
    """The table of the logs, and of the CSV files in folders, with a row a log and phase.

    Speedups are over the log of `seq` with the shortest name. Raises InputError for a file that
    cannot be read, or whose name has no layout.
    """
    files = [f for path in paths for f in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]
    if not files:
        raise InputError(paths[0], None, "no CSV file", "a folder with .csv files")
    steps = pd.concat([read_log(file) for file in files], ignore_index=True)
    keys = ["log", "layout", "microbatches", "phase"]
    seconds = steps.groupby(keys, sort=False)["seconds"]
    frame = seconds.agg(
        n="size",
        mean_s="mean",
        std_s="std",
        min_s="min",
        max_s="max",
        median_s="median",
        warmup_steps=detect_warmup,
        outliers=lambda values: mark_outliers(values).sum(),
    ).reset_index()
    sequential = frame.loc[(frame["layout"] == "seq") & (frame["microbatches"] == 1), "log"]
    base = min(sequential, key=len, default="")
    base_s = frame[frame["log"] == base].set_index("phase")["mean_s"]
    layouts = frame["layout"].map(Layout.parse)
    replicas = layouts.map(lambda layout: layout.replicas)
    frame["speedup"] = frame["phase"].map(base_s) / frame["mean_s"] * replicas
    frame["bound"] = [
        bound(layout.replicas, layout.stages, count)
        for layout, count in zip(layouts, frame["microbatches"], strict=True)
    ]
    above = [
        f"above the bound: {speedup:.3f}, at most {most:.3f}"
        for speedup, most in zip(frame["speedup"], frame["bound"], strict=True)
    ]
    frame["verdict"] = np.select(
        [
            frame["log"] == base,
            frame["speedup"].isna(),
            frame["speedup"] > frame["bound"],
        ],
        ["baseline", "no log of seq to compare with", above],
        "within the bound",
    )
    return Table("step_times", "Step times of imported logs, seconds a mini-batch", frame, (_NOTE,))


def read_log(path: Path) -> pd.DataFrame:
    """A row a step: log, layout, microbatches, phase and seconds.

    Raises InputError with its line for what is no step.
    """
    layout, microbatches = setting_in_name(path)
    try:
        raw = pd.read_csv(
            path,
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,
            index_col=False,
            encoding="utf-8-sig",
        )
    except OSError as error:
        raise InputError(path, None, error.strerror, "a readable CSV file") from None
    except ValueError as error:
        raise InputError(path, None, str(error).strip(), "a CSV file in UTF-8") from None
    raw = raw[(raw != "").any(axis=1)]
    column = next((name for name in TIMES if name in raw), None)
    if column is None:
        raise InputError(
            path, "column of times", ", ".join(map(str, raw)) or "nothing", ", ".join(TIMES)
        )
    if raw.empty:
        raise InputError(path, None, "no steps", "at least one row with a time")
    seconds = pd.to_numeric(raw[column], errors="coerce") * TIMES[column]
    phases = raw["phase"].map(PHASES) if "phase" in raw else pd.Series("train", raw.index)
    for name, wrong, allowed in (
        (column, ~seconds.between(0.0, np.inf, inclusive="neither"), "a number above zero"),
        ("phase", phases.isna(), ", ".join(PHASES)),
    ):
        if wrong.any():
            place = int(wrong.to_numpy().argmax())
            # Below the heading, counted from 1.
            line = int(raw.index[place]) + 2
            raise InputError(f"{path}:{line}", name, repr(raw[name].iloc[place]), allowed)
    settings = {"log": path.stem, "layout": str(layout), "microbatches": microbatches}
    return pd.DataFrame({**settings, "phase": phases, "seconds": seconds})


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


def write_import_page(table: Table, out: Path) -> Path:
    """Write the table, report.md and report.html into `out`; returns report.html.

    Files of other names in `out` stay. Raises InputError where it cannot be written.
    """
    blocks: tuple[Block, ...] = (Table("", table.title, table.frame), *map(Text, table.notes))
    names = ", ".join(dict.fromkeys(table.frame["log"]))
    section = Section("steps", "Step times and speedups", blocks)
    with atomic_output_folder(out) as folder:
        write_table(table, folder)
        write_page(Document("Imported step logs", names, (section,), folder), folder)
    return out / "report.html"
