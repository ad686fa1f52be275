"""Spans as a Chrome trace, for chrome://tracing and ui.perfetto.dev.

Format: "Trace Event Format" (Google, 2016), the JSON object form: complete events (ph X) with
timestamps and durations in microseconds; a replica is a process, a stage a thread. `forward 3'` is
micro-batch 3 in the second part of its stage; `weights 3` are the gradients of weights of
micro-batch 3 where its `backward 3` is of inputs alone.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.figures.step_timeline import DASH, cell_spans, find_cell
from gnnhpc.core.versioned_json import write_atomically

if TYPE_CHECKING:
    import pandas as pd

    from analysis.load.run_data import RunData as Run

Event = dict[str, Any]


def write_trace(run: Run, cell: str, out: Path) -> Path:
    """Write all spans of one cell to `out`; returns `out`.

    `cell` is an id or the start of one. Raises InputError for an unknown cell or one without
    spans.
    """
    cell = find_cell(run, cell)
    cell_row = run.cells[run.cells["cell"] == cell].iloc[0]
    document = {
        "traceEvents": trace_events(run, cell),
        "displayTimeUnit": "ms",
        "otherData": {"cell": cell, "layout": str(cell_row["layout"])},
    }
    write_atomically(out, json.dumps(document, separators=(",", ":")) + "\n")
    return out


def trace_events(run: Run, cell: str) -> list[Event]:
    """Metadata events, then steps and spans in order of time; a step comes before its spans."""
    spans = cell_spans(run, cell)
    ranks = run.ranks[run.ranks["cell"] == cell]
    places = ranks[["rank", "replica", "stage"]].drop_duplicates().sort_values("rank")
    events = [
        event
        for rank, replica, stage in places.itertuples(index=False)
        for event in _metadata_events(int(rank), int(replica), int(stage))
    ]
    timed = _step_events(ranks) + _span_events(spans, ranks)
    # Of events with equal starts the longer one is the outer one and must come first.
    timed.sort(key=lambda event: (event["pid"], event["tid"], event["ts"], -event["dur"]))
    return events + timed


def _metadata_events(rank: int, replica: int, stage: int) -> list[Event]:
    def metadata(kind: str, **args: object) -> Event:
        return {"ph": "M", "name": kind, "pid": replica, "tid": stage, "ts": 0, "args": args}

    return [
        metadata("process_name", name=f"replica {replica}"),
        metadata("process_sort_index", sort_index=replica),
        metadata("thread_name", name=f"stage {stage} (rank {rank})"),
        metadata("thread_sort_index", sort_index=stage),
    ]


def _step_events(ranks: pd.DataFrame) -> list[Event]:
    columns = ["replica", "stage", "phase", "step", "start_s", "wall_s", "samples"]
    return [
        _complete_event(
            f"{phase} step {step}",
            "step",
            (int(replica), int(stage)),
            start,
            wall,
            {"samples": int(samples)},
        )
        for replica, stage, phase, step, start, wall, samples in ranks[columns].itertuples(
            index=False
        )
    ]


def _span_events(spans: pd.DataFrame, ranks: pd.DataFrame) -> list[Event]:
    keys = ["rank", "phase", "step"]
    # Spans are relative to their step's first barrier, steps to the rank's first step.
    starts = ranks[[*keys, "start_s"]].rename(columns={"start_s": "step_start_s"})
    columns = ["replica", "stage", "phase", "step", "name", "microbatch", "virtual_stage"]
    placed = spans.merge(starts, on=keys)[[*columns, "start_s", "end_s", "step_start_s"]]
    events = []
    for row in placed.itertuples(index=False):
        replica, stage, phase, step, name, microbatch, part, start, end, offset = row
        args: dict[str, object] = {"phase": str(phase), "step": int(step)}
        title = str(name)
        if not math.isnan(microbatch):
            args["microbatch"] = int(microbatch)
            title = f"{name} {int(microbatch)}{DASH * part}"
        if part:
            args["part"] = int(part)
        place = (int(replica), int(stage))
        events.append(_complete_event(title, str(name), place, offset + start, end - start, args))
    return events


def _complete_event(
    name: str,
    category: str,
    place: tuple[int, int],
    start_s: float,
    seconds: float,
    args: dict[str, object],
) -> Event:
    begin = round(float(start_s) * 1e6, 3)
    end = round((float(start_s) + max(float(seconds), 0.0)) * 1e6, 3)
    replica, stage = place
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": replica,
        "tid": stage,
        "ts": begin,
        # Ends are rounded, not durations, so that spans stay inside their steps.
        "dur": round(end - begin, 3),
        "args": args,
    }
