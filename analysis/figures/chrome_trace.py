"""Spans as a Chrome trace, for chrome://tracing and ui.perfetto.dev.

Format: "Trace Event Format" (Google, 2016), complete events (ph X) in microseconds; a replica is a
process, a stage a thread. `forward 3'` is micro-batch 3 in the second virtual stage of its rank.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.figures.timeline import DASH
from gnnhpc.core.versioned_json import write_atomically

if TYPE_CHECKING:
    from analysis.load.run_data import RunData

Event = dict[str, Any]


def write_trace(run: RunData, cell: str, out: Path) -> Path:
    """Write all spans of one cell to `out`; returns `out`.

    `cell` is an id or the start of one. Raises InputError for an unknown cell or one without
    spans.
    """
    cell = run.find_cell(cell)
    layout = str(run.cells.loc[run.cells["cell"] == cell, "layout"].iloc[0])
    document = {
        "traceEvents": trace_events(run, cell),
        "displayTimeUnit": "ms",
        "otherData": {"cell": cell, "layout": layout},
    }
    write_atomically(out, json.dumps(document, separators=(",", ":")) + "\n")
    return out


def trace_events(run: RunData, cell: str) -> list[Event]:
    """Names of ranks, then steps and spans in order of time; a step comes before its spans."""
    spans, ranks = run.spans_of(cell), run.ranks[run.ranks["cell"] == cell]
    places = ranks[["rank", "replica", "stage"]].drop_duplicates().sort_values("rank")
    events: list[Event] = []
    for rank, replica, stage in places.itertuples(index=False):
        where = {"ph": "M", "pid": int(replica), "tid": int(stage), "ts": 0}
        events += [
            where | {"name": "process_name", "args": {"name": f"replica {replica}"}},
            where | {"name": "thread_name", "args": {"name": f"stage {stage} (rank {rank})"}},
        ]
    names = ranks["phase"].astype(str) + " step " + ranks["step"].astype(str)
    steps = ranks.assign(
        title=names, cat="step", begin=ranks["start_s"], end=ranks["start_s"] + ranks["wall_s"]
    )
    # Spans are relative to their step's first barrier, steps to the rank's first step.
    keys = ["rank", "phase", "step"]
    starts = ranks[[*keys, "start_s"]].rename(columns={"start_s": "step_start_s"})
    spans = spans.merge(starts, on=keys)
    microbatch = spans["microbatch"].map(lambda m: "" if pd.isna(m) else f" {int(m)}")
    names, dashes = spans["name"].astype(str), spans["virtual_stage"].map(lambda v: DASH * v)
    spans = spans.assign(
        title=names + microbatch + dashes,
        cat=names,
        begin=spans["step_start_s"] + spans["start_s"],
        end=spans["step_start_s"] + spans["end_s"].clip(lower=spans["start_s"]),
    )
    columns = ["title", "cat", "replica", "stage", "phase", "step", "begin", "end"]
    timed = pd.concat([steps[columns], spans[columns]]).round({"begin": 9, "end": 9})
    # Of events with equal starts the longer one is the outer one and must come first.
    order = ["replica", "stage", "begin", "end"]
    timed = timed.sort_values(order, ascending=[True, True, True, False], kind="stable")
    for title, cat, replica, stage, phase, step, begin, end in timed.itertuples(index=False):
        where = {"pid": int(replica), "tid": int(stage), "ts": round(begin * 1e6, 3)}
        args = {"phase": str(phase), "step": int(step)}
        # Ends are rounded, not durations, so that spans stay inside their steps.
        length = round(round(end * 1e6, 3) - where["ts"], 3)
        events.append({"ph": "X", "name": title, "cat": cat, **where, "dur": length, "args": args})
    return events
