"""The timeline of one step: what each rank did, and the ideal of the same schedule.

Times are seconds since the step's first barrier. The ideal is the same schedule with this step's
measured forward and backward seconds and nothing else (gnnhpc.core.schedules.timeline). Under a
split backward, `backward` is of inputs alone, and `weights` are bars of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from analysis.summary.cell_measures import timed_as_a_whole
from analysis.summary.ideal_step import has_split_backward, shares_of
from gnnhpc.core.errors import InputError
from gnnhpc.core.schedules import (
    ScheduleName,
    bound_with_split_backward,
    ideal_bubble,
    place_of_virtual_stage,
    timeline,
)

if TYPE_CHECKING:
    import pandas as pd

    from analysis.load.run_data import RunData

Phase = Literal["train", "test"]
DASH = "'"


@dataclass(frozen=True)
class RankRow:
    """A row of the timeline: a rank with its replica and stage."""

    rank: int
    replica: int
    stage: int


@dataclass(frozen=True)
class Bar:
    """One action of one rank, from start to end, seconds since the step's first barrier."""

    rank: int
    name: str
    """forward, backward, weights, allreduce, optimizer or wait."""
    microbatch: int | None
    start_s: float
    end_s: float
    virtual_stage: int = 0

    @property
    def number(self) -> str:
        """The micro-batch, with a dash for each virtual stage of the rank before this one: `3'`."""
        return "" if self.microbatch is None else f"{self.microbatch}{DASH * self.virtual_stage}"


@dataclass(frozen=True)
class Timeline:
    """One step of one cell, measured and ideal."""

    cell: str
    model: str
    data: str
    layout: str
    schedule: str
    virtual_stages: int
    microbatches: int
    phase: str
    step: int
    wall_s: float
    rows: tuple[RankRow, ...]
    measured: tuple[Bar, ...]
    ideal: tuple[Bar, ...]
    """Empty if a micro-batch's span is missing."""
    bubble: float | None
    """Waiting and what lies between spans over all rank-time of this step, 0 of one rank, which
    waits for nobody; None where stages were not timed one by one."""
    ideal_bubble: float | None
    """Waiting over all rank-time of the ideal with the measured seconds."""
    balanced_bubble: float | None
    """Waiting over all rank-time of equal stages. Under a split backward it follows from this
    step's own seconds of forwards, gradients of inputs and gradients of weights; None where those
    are not known."""
    sampling_s: float | None = None
    """The bar before the first barrier: the step's wait for its sampled mini-batch, if it has
    one."""

    @property
    def ideal_s(self) -> float | None:
        return max((bar.end_s for bar in self.ideal), default=None)


def cells_with_spans(run: RunData) -> list[str]:
    """Ids of the cells whose ranks wrote spans, in the order of the manifest."""
    present = set(run.spans["cell"].unique())
    return [str(cell) for cell in run.cells["cell"] if cell in present]


def find_cell(run: RunData, name: str) -> str:
    """The id of the cell with this id or start of one; raises InputError unless it is one cell."""
    ids = [str(cell) for cell in run.cells["cell"]]
    if name in ids:
        return name
    matches = [cell for cell in ids if cell.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    found = f"{name} ({len(matches)} cells begin so)" if matches else name
    some = ", ".join((matches or ids)[:5]) + (", ..." if len(matches or ids) > 5 else "")
    raise InputError("trace", "cell", found, some or "the cells of a run, and this has none")


def cell_spans(run: RunData, cell: str) -> pd.DataFrame:
    """The spans of one cell; raises InputError for a cell that has none."""
    spans = run.spans[run.spans["cell"] == cell]
    if spans.empty:
        raise InputError("trace", f"spans of {cell}", "none", "a cell run with `spans: true`")
    return spans


def typical_step(run: RunData, cell: str, phase: Phase = "train") -> int:
    """The step with spans whose time is nearest the median, of steps after warm-up if any.

    Raises InputError for a cell without spans in this phase.
    """
    spans = cell_spans(run, cell)
    with_spans = spans.loc[spans["phase"] == phase, "step"].unique()
    mine = run.steps[(run.steps["cell"] == cell) & (run.steps["phase"] == phase)]
    mine = mine[mine["step"].isin(with_spans)]
    if mine.empty:
        raise InputError("trace", f"{phase} spans of {cell}", "none", "spans of a recorded step")
    settled = mine[~mine["warmup"].astype(bool)]
    chosen = mine if settled.empty else settled
    distance = (chosen["wall_s"] - chosen["wall_s"].median()).abs().to_numpy()
    return int(chosen["step"].to_numpy()[distance.argmin()])


def measured_timeline(
    run: RunData, cell: str, phase: Phase = "train", step: int | None = None
) -> Timeline:
    """The timeline of one step, by default the typical one; raises InputError without spans."""
    if step is None:
        step = typical_step(run, cell, phase)
    spans = cell_spans(run, cell)
    spans = spans[(spans["phase"] == phase) & (spans["step"] == step)]
    if spans.empty:
        raise InputError("trace", f"{phase} step {step} of {cell}", "no spans", "a recorded step")
    ranks = run.ranks
    records = ranks[(ranks["cell"] == cell) & (ranks["phase"] == phase) & (ranks["step"] == step)]
    settings = run.cells[run.cells["cell"] == cell].iloc[0]
    places = spans[["rank", "replica", "stage"]].drop_duplicates().sort_values("rank")
    rows = tuple(RankRow(*map(int, place)) for place in places.itertuples(index=False))
    measured = tuple(_bars(spans))
    schedule = cast(ScheduleName, str(settings["schedule"]))
    microbatches, virtual = int(settings["microbatches"]), int(settings["virtual_stages"])
    ideal = ideal_bars(
        measured, rows, schedule, microbatches, virtual_stages=virtual, training=phase == "train"
    )
    equal = (schedule, int(settings["stages"]), microbatches, virtual)
    waited = _share(records["waited_s"].sum(), records["wall_s"].sum())
    sampled = records["sampled_edges"].notna().any()
    return Timeline(
        cell=cell,
        model=str(settings["model"]),
        data=str(settings["data"]),
        layout=str(settings["layout"]),
        schedule=schedule,
        virtual_stages=virtual,
        microbatches=microbatches,
        phase=phase,
        step=step,
        wall_s=float(records["wall_s"].max()),
        rows=rows,
        measured=measured,
        ideal=ideal,
        bubble=None if cell in timed_as_a_whole(run) else waited,
        ideal_bubble=waited_share(ideal, len(rows)),
        balanced_bubble=_balanced_bubble(records, *equal, training=phase == "train"),
        sampling_s=float((records["step_s"] - records["wall_s"]).max()) if sampled else None,
    )


def _bars(spans: pd.DataFrame) -> list[Bar]:
    columns = ["rank", "name", "microbatch", "start_s", "end_s", "virtual_stage"]
    return [
        Bar(
            int(rank),
            str(name),
            None if math.isnan(microbatch) else int(microbatch),
            float(start),
            float(end),
            int(virtual),
        )
        for rank, name, microbatch, start, end, virtual in spans[columns].itertuples(index=False)
    ]


def _balanced_bubble(
    records: pd.DataFrame,
    schedule: ScheduleName,
    stages: int,
    microbatches: int,
    virtual_stages: int,
    *,
    training: bool,
) -> float | None:
    """`records` are of one step."""
    if not has_split_backward(schedule, stages):
        return ideal_bubble(stages, microbatches, virtual_stages)
    if not training:
        return ideal_bubble(stages, microbatches)
    # Not the sums of pandas, which take a missing number for 0.
    seconds = [float(records[f"{name}_s"].to_numpy().sum()) for name in _PASSES]
    shares = shares_of(*seconds)
    if shares is None:
        return None
    bound = bound_with_split_backward(schedule, 1, stages, microbatches, shares, virtual_stages)
    return 1.0 - bound / stages


_PASSES = ("forward", "backward", "weights")
_Key = tuple[int, str, int, int]
"""Rank, kind, micro-batch, virtual stage."""


def ideal_bars(
    measured: tuple[Bar, ...],
    rows: tuple[RankRow, ...],
    schedule: ScheduleName,
    microbatches: int,
    *,
    virtual_stages: int = 1,
    training: bool,
) -> tuple[Bar, ...]:
    """The bars of the schedule on each replica, with the seconds measured for each micro-batch.

    Empty if the span of a micro-batch is missing where others of its kind are there.
    """
    split = has_split_backward(schedule, len({row.stage for row in rows}))
    kinds = _PASSES[: (3 if split else 2) if training else 1]
    seconds: dict[_Key, float] = {}
    for bar in measured:
        if bar.name in kinds and bar.microbatch is not None:
            key = (bar.rank, bar.name, bar.microbatch, bar.virtual_stage)
            seconds[key] = seconds.get(key, 0.0) + bar.end_s - bar.start_s
    known = {(rank, kind, virtual) for rank, kind, _, virtual in seconds}
    bars: list[Bar] = []
    for replica in sorted({row.replica for row in rows}):
        ranks = [row.rank for row in sorted(rows, key=lambda r: r.stage) if row.replica == replica]
        holders = [
            place_of_virtual_stage(schedule, number, len(ranks))
            for number in range(virtual_stages * len(ranks))
        ]

        def cost(stage: int, kind: str, m: int, virtual: int, ranks: list[int] = ranks) -> float:
            """nan if it is missing; 0 for a backward with nothing to train."""
            rank = ranks[stage]
            free = kind != "forward" and (rank, kind, virtual) not in known
            free = free and (rank, "forward", virtual) in known
            return seconds.get((rank, kind, m, virtual), 0.0 if free else math.nan)

        costs = {
            kind: [[cost(s, kind, m, v) for m in range(microbatches)] for s, v in holders]
            for kind in kinds
        }
        if any(math.isnan(one) for table in costs.values() for line in table for one in line):
            return ()
        forward = costs["forward"]
        for slot in timeline(
            *(schedule, forward, costs.get("backward", forward), microbatches),
            weights_s=costs.get("weights"),
            virtual_stages=virtual_stages,
            training=training,
        ):
            action, times = slot.action, (slot.start_s, slot.end_s)
            if action.kind in kinds:
                rank = ranks[slot.stage]
                bars.append(Bar(rank, action.kind, action.microbatch, *times, action.virtual_stage))
    return tuple(bars)


def waited_share(bars: tuple[Bar, ...], ranks: int) -> float | None:
    """The share of rank-time without a bar, up to the end of the last bar; None without bars."""
    end = max((bar.end_s for bar in bars), default=0.0)
    busy = sum(bar.end_s - bar.start_s for bar in bars)
    return _share(ranks * end - busy, ranks * end)


def _share(part: float, whole: float) -> float | None:
    return float(part) / float(whole) if whole > 0 else None
