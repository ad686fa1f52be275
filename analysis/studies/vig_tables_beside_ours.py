"""Raffi and Dazzi's tables 1 to 9 of ViG, with this run's numbers beside the published ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.load.run_data import RunData as Run
from analysis.render.document import Table
from analysis.statistics.sample import Sample
from analysis.studies.study import published_studies, read_published
from analysis.summary.settings_in_words import settings_in_words, varying_settings
from analysis.summary.split_backward import rows_with_split_backward

_STATISTICS = ["mean_s", "std_s", "min_s", "max_s", "n"]
_IN_EVERY_LABEL = ("batch_size", "implementation", "schedule", "virtual_stages")
_COLUMNS = ["source", "phase", *_STATISTICS, "mean_low", "mean_high", "note"]
# Defects of every table of a pipeline.
_PIPELINE_DEFECTS = ("gradients", "labels", "summed", "subgraph", "barrier")


def vig_tables(run: Run, summary: pd.DataFrame) -> list[Table]:
    """Tables 1 to 9; those that this run has no cells for have published rows only."""
    published, names = read_published("raffi_tables"), vig_settings(summary)
    tables = []
    for number, rows in published.groupby("table"):
        first = rows.iloc[0]
        layout, microbatches = str(first["layout"]), int(first["microbatches"])
        if layout in ("block", "readout"):
            ours = list(layer_group_rows(run, layout, names))
            title = f"one {layout}, sequential"
        else:
            ours = list(_layout_rows(summary, layout, microbatches, names))
            title = f"{layout}, {microbatches} micro-batches" if layout != "seq" else "sequential"
        published_rows = rows.assign(source="published").reindex(columns=_COLUMNS)
        frame = pd.concat(
            [published_rows, pd.DataFrame(ours, columns=_COLUMNS)] if ours else [published_rows]
        )
        frame = frame.assign(note=frame["note"].fillna("")).reset_index(drop=True)
        tables.append(
            Table(
                f"raffi_table{number}",
                f"Raffi's table {number}: {title}, seconds a mini-batch",
                frame,
                tuple(_table_notes(layout, int(first["stages"]))),
            )
        )
    return tables


def _table_notes(layout: str, stages: int) -> Iterator[str]:
    source = published_studies()["raffi"]
    yield f"Published: {source.citation}. {source.machine}."
    names = ["misprint"] if layout == "seq" else []
    if stages > 1:
        names += _PIPELINE_DEFECTS
    if stages == 4:
        names.insert(0, "cut")
    for name in names:
        yield f"Known defect: {source.defects[name]}"


def vig_settings(summary: pd.DataFrame) -> list[str]:
    """The settings that tell rows of ViG apart and are not in every label."""
    rows = summary[summary["model"] == "vig"]
    varying = varying_settings(rows) if len(rows) else []
    return [name for name in varying if name not in _IN_EVERY_LABEL]


def run_label(row: Any, names: Sequence[str]) -> str:
    """Of our rows: data, batch size, implementation, schedule, and the settings in `names`."""
    batch = f", batch {int(row['batch_size'])}" if pd.notna(row["batch_size"]) else ""
    schedule = f", {row['schedule']}" if row["schedule"] != "gpipe" else ""
    others = settings_in_words(row, names)
    label = f"ours: {row['data']}{batch}, {row['implementation']}{schedule}"
    return f"{label}, {others}" if others else label


def _layout_rows(
    summary: pd.DataFrame, layout: str, microbatches: int, names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    measured = summary[
        (summary["model"] == "vig")
        & (summary["layout"] == layout)
        & (summary["microbatches"] == microbatches)
        # The study has one part a stage and backwards whole: no table of it has any others.
        & (summary["virtual_stages"] == 1)
        & ~rows_with_split_backward(summary)
        & (summary["n"] > 0)
    ]
    for _, row in measured.iterrows():
        shown = {name: row[name] for name in ("phase", *_STATISTICS, "mean_low", "mean_high")}
        yield {"source": run_label(row, names), **shown, "note": row["flags"]}


def layer_group_rows(run: Run, kind: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Statistics of one `block` or of the `readout`, in sequential cells with one micro-batch.

    A row a configuration, `names` are in its label; `groups` is how many of the kind it has.
    """
    cells = run.cells[
        (run.cells["model"] == "vig")
        & (run.cells["world_size"] == 1)
        & (run.cells["microbatches"] == 1)
        & run.cells["counts"].astype(bool)
    ]
    counted = run.steps.loc[run.steps["kept"], ["cell", "phase", "step"]]
    for _, same in cells.groupby(list(run.settings), sort=False, dropna=False):
        groups = run.layer_times[run.layer_times["cell"].isin(same["cell"])]
        groups = groups[groups["group"].astype(str).str.startswith(kind)]
        groups = groups.merge(counted, on=["cell", "phase", "step"])
        label, many = run_label(same.iloc[0], names), groups["group"].nunique()
        for phase, part in groups.groupby("phase", observed=True):
            ways = {"forward": part["forward_s"]}
            if phase == "train":
                ways["forward and backward"] = part["forward_s"] + part["backward_s"]
            for way, seconds in ways.items():
                found = _statistics(part, seconds)
                yield {"source": label, "phase": phase, **found, "note": way, "groups": many}


def _statistics(part: pd.DataFrame, seconds: pd.Series[float]) -> dict[str, Any]:
    """Statistics over blocks and steps; the mean and its interval are of runs, whose steps' means
    over blocks are their step times."""
    steps = seconds.groupby([part["cell"], part["step"]], observed=True).mean()
    sample = Sample([walls.to_numpy() for _, walls in steps.groupby(level=0, observed=True)])
    return {
        "mean_s": sample.mean.value,
        "std_s": seconds.std(),
        "min_s": seconds.min(),
        "max_s": seconds.max(),
        "n": len(seconds),
        "mean_low": sample.mean.low,
        "mean_high": sample.mean.high,
    }
