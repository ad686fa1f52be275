"""Raffi and Dazzi's tables 1 to 9 of ViG, with this run's numbers beside the published ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.loading.run import Run
from analysis.papers.published_data import published_studies, read_published
from analysis.render.named_table import NamedTable
from analysis.stats.intervals import Sample

_STATISTICS = ["mean_s", "std_s", "min_s", "max_s", "n"]
_APART = ("run", "apart")
_COLUMNS = ["source", "phase", *_STATISTICS, "mean_low", "mean_high", "note"]
# Defects of every table of a pipeline.
_PIPELINE_DEFECTS = ("gradients", "labels", "summed", "subgraph", "barrier")


def vig_tables(run: Run, summary: pd.DataFrame) -> list[NamedTable]:
    """Tables 1 to 9; those that this run has no cells for have published rows only."""
    published = read_published("raffi_tables")
    tables = []
    for number, rows in published.groupby("table"):
        first = rows.iloc[0]
        layout, microbatches = str(first["layout"]), int(first["microbatches"])
        if layout in ("block", "readout"):
            ours = list(layer_group_rows(run, layout))
            title = f"one {layout}, sequential"
        else:
            ours = list(_layout_rows(summary, layout, microbatches))
            title = f"{layout}, {microbatches} micro-batches" if layout != "seq" else "sequential"
        published_rows = rows.assign(source="published").reindex(columns=_COLUMNS)
        frame = pd.concat(
            [published_rows, pd.DataFrame(ours, columns=_COLUMNS)] if ours else [published_rows]
        )
        frame = frame.assign(note=frame["note"].fillna("")).reset_index(drop=True)
        tables.append(
            NamedTable(
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


def run_label(row: Any) -> str:
    """The label of our rows: data, batch size, implementation, schedule, and what is unlike."""
    batch = f", batch {int(row['batch_size'])}" if pd.notna(row["batch_size"]) else ""
    schedule = f", {row['schedule']}" if row["schedule"] != "gpipe" else ""
    apart = "".join(f", {row[name]}" for name in _APART if row.get(name))
    return f"ours: {row['data']}{batch}, {row['implementation']}{schedule}{apart}"


def _layout_rows(summary: pd.DataFrame, layout: str, microbatches: int) -> Iterator[dict[str, Any]]:
    measured = summary[
        (summary["model"] == "vig")
        & (summary["layout"] == layout)
        & (summary["microbatches"] == microbatches)
        & (summary["n"] > 0)
    ]
    for _, row in measured.iterrows():
        shown = {name: row[name] for name in ("phase", *_STATISTICS, "mean_low", "mean_high")}
        yield {"source": run_label(row), **shown, "note": row["flags"]}


def layer_group_rows(run: Run, kind: str) -> Iterator[dict[str, Any]]:
    """Statistics of one `block` or of the `readout`, in sequential cells with one micro-batch."""
    cells = run.cells[
        (run.cells["model"] == "vig")
        & (run.cells["world_size"] == 1)
        & (run.cells["microbatches"] == 1)
        & run.cells["counts"].astype(bool)
    ]
    counted = run.steps.loc[run.steps["kept"], ["cell", "phase", "step"]]
    for _, same in cells.groupby(["data", "batch_size", "implementation"], sort=False):
        groups = run.groups[run.groups["cell"].isin(same["cell"])]
        groups = groups[groups["group"].astype(str).str.startswith(kind)]
        groups = groups.merge(counted, on=["cell", "phase", "step"])
        label = run_label(same.iloc[0])
        for phase, part in groups.groupby("phase", observed=True):
            ways = {"forward": part["forward_s"]}
            if phase == "train":
                ways["forward and backward"] = part["forward_s"] + part["backward_s"]
            for way, seconds in ways.items():
                yield {"source": label, "phase": phase, **_statistics(part, seconds), "note": way}


def _statistics(part: pd.DataFrame, seconds: pd.Series[float]) -> dict[str, Any]:
    """Statistics over blocks and steps; the interval is of each step's mean over blocks."""
    steps = seconds.groupby([part["cell"], part["step"]], observed=True).mean()
    sample = Sample([walls.to_numpy() for _, walls in steps.groupby(level=0, observed=True)])
    return {
        "mean_s": seconds.mean(),
        "std_s": seconds.std(),
        "min_s": seconds.min(),
        "max_s": seconds.max(),
        "n": len(seconds),
        "mean_low": sample.mean.low,
        "mean_high": sample.mean.high,
    }
