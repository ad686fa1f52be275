"""Spans as a Chrome trace, for chrome://tracing and ui.perfetto.dev.

Format: "Trace Event Format" (Google, 2016), the JSON object form: complete events (ph X) with
timestamps and durations in microseconds; a replica is a process, a stage a thread. `forward 3'` is
micro-batch 3 in the second virtual stage of its rank; `weights 3` are the gradients of weights of
micro-batch 3 where its `backward 3` is of inputs alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.figures.timeline_bars import DASH, cell_spans, find_cell
from gnnhpc.core.versioned_json import write_atomically

if TYPE_CHECKING:
    import pandas as pd

    from analysis.load.run_data import RunData

Event = dict[str, Any]


def write_trace(run: RunData, cell: str, out: Path) -> Path:
    """Write all spans of one cell to `out`; returns `out`.

    `cell` is an id or the start of one. Raises InputError for an unknown cell or one without
    spans.
    """
    cell = find_cell(run, cell)
    layout = str(run.cells.loc[run.cells["cell"] == cell, "layout"].iloc[0])
    document = {
        "traceEvents": trace_events(run, cell),
        "displayTimeUnit": "ms",
        "otherData": {"cell": cell, "layout": layout},
    }
    write_atomically(out, json.dumps(document, separators=(",", ":")) + "\n")
    return out


def trace_events(run: RunData, cell: str) -> list[Event]:
    """Metadata events, then steps and spans in order of time; a step comes before its spans."""
    spans = cell_spans(run, cell)
    ranks = run.ranks[run.ranks["cell"] == cell]
    places = ranks[["rank", "replica", "stage"]].drop_duplicates().sort_values("rank")
    events = [
        {"ph": "M", "name": kind, "pid": int(replica), "tid": int(stage), "ts": 0, "args": args}
        for rank, replica, stage in places.itertuples(index=False)
        for kind, args in (
            ("process_name", {"name": f"replica {replica}"}),
            ("process_sort_index", {"sort_index": int(replica)}),
            ("thread_name", {"name": f"stage {stage} (rank {rank})"}),
            ("thread_sort_index", {"sort_index": int(stage)}),
        )
    ]
    timed = [*_step_events(ranks), *_span_events(spans, ranks)]
    # Of events with equal starts the longer one is the outer one and must come first.
    timed.sort(key=lambda event: (event["pid"], event["tid"], event["ts"], -event["dur"]))
    return events + timed


def _step_events(ranks: pd.DataFrame) -> Iterator[Event]:
    for row in ranks.to_dict("records"):
        name, args = f"{row['phase']} step {row['step']}", {"samples": int(row["samples"])}
        yield _complete_event(row, name, "step", row["start_s"], row["wall_s"], args)


def _span_events(spans: pd.DataFrame, ranks: pd.DataFrame) -> Iterator[Event]:
    keys = ["rank", "phase", "step"]
    # Spans are relative to their step's first barrier, steps to the rank's first step.
    starts = ranks[[*keys, "start_s"]].rename(columns={"start_s": "step_start_s"})
    for row in spans.merge(starts, on=keys).to_dict("records"):
        args: dict[str, object] = {"phase": str(row["phase"]), "step": int(row["step"])}
        name = title = str(row["name"])
        if not math.isnan(row["microbatch"]):
            args["microbatch"] = int(row["microbatch"])
            title = f"{name} {args['microbatch']}{DASH * row['virtual_stage']}"
        if row["virtual_stage"]:
            args["virtual_stage"] = int(row["virtual_stage"])
        begin, seconds = row["step_start_s"] + row["start_s"], row["end_s"] - row["start_s"]
        yield _complete_event(row, title, name, begin, seconds, args)


def _complete_event(
    row: Mapping[Any, Any],
    name: str,
    category: str,
    start_s: float,
    seconds: float,
    args: Mapping[str, object],
) -> Event:
    begin = round(float(start_s) * 1e6, 3)
    end = round((float(start_s) + max(float(seconds), 0.0)) * 1e6, 3)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": int(row["replica"]),
        "tid": int(row["stage"]),
        "ts": begin,
        # Ends are rounded, not durations, so that spans stay inside their steps.
        "dur": round(end - begin, 3),
        "args": args,
    }
