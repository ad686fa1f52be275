"""The timeline of a step: what each rank did, above the ideal of the same schedule.

Times are seconds since the step's first barrier. The ideal is the same schedule with this step's
measured forward and backward seconds and nothing else (gnnhpc.core.schedules.timeline). Under a
split backward, `backward` is of inputs alone, and `weights` are bars of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from analysis.figures.style import FULL_IN, NARROW_IN, figure_width, new_figure, styled
from analysis.summary.cell_measures import timed_as_a_whole
from analysis.summary.ideal_step import LEAST_SHARE, has_split_backward
from analysis.summary.settings_in_words import study_title
from gnnhpc.core.errors import InputError
from gnnhpc.core.schedules import (
    ScheduleName,
    place_of_virtual_stage,
    timeline,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from analysis.load.run_data import RunData

MAX_RANKS = 16
"""The most rows that are readable on a page; the Chrome trace has all ranks."""
DASH = "'"
_COLOURS = {
    "forward": "#56b4e9",
    "backward": "#0a5a8a",
    "weights": "#a9d6b8",
    "allreduce": "#d55e00",
    "optimizer": "#a8a100",
    "wait": "#e6e6e6",
}
_PASSES = ("forward", "backward", "weights")
_PLACE = ["rank", "name", "virtual_stage", "microbatch"]


@dataclass(frozen=True)
class Timeline:
    """One training step of one cell, measured and ideal."""

    settings: pd.Series[Any]
    """The cell's row of `RunData.cells`."""
    step: int
    wall_s: float
    ranks: pd.DataFrame
    """A row a rank: rank, replica, stage."""
    measured: pd.DataFrame
    """A row a span: rank, name, virtual_stage, microbatch, start_s, end_s."""
    ideal: pd.DataFrame
    """The same of the ideal; empty if a micro-batch's span is missing."""
    bubble: float | None
    """Waiting and what lies between spans over all rank-time of this step, 0 of one rank, which
    waits for nobody; None where stages were not timed one by one."""
    ideal_bubble: float | None
    """Waiting over all rank-time of the ideal with the measured seconds."""
    sampling_s: float | None = None
    """The step's wait for its sampled mini-batch before the first barrier, if it has one."""


def measured_timeline(run: RunData, cell: str) -> Timeline:
    """The training step with spans whose time is nearest the median, after warm-up if any is.

    Raises InputError for a cell without spans of training.
    """
    spans = run.spans[(run.spans["cell"] == cell) & (run.spans["phase"] == "train")]
    steps = run.steps[(run.steps["cell"] == cell) & (run.steps["phase"] == "train")]
    steps = steps[steps["step"].isin(spans["step"].unique())]
    if steps.empty:
        raise InputError("timeline", f"spans of {cell}", "none", "a cell run with `spans: true`")
    settled = steps[~steps["warmup"].astype(bool)]
    chosen = steps if settled.empty else settled
    distance = (chosen["wall_s"] - chosen["wall_s"].median()).abs().to_numpy()
    step = int(chosen["step"].to_numpy()[distance.argmin()])
    records = run.ranks[(run.ranks["cell"] == cell) & (run.ranks["phase"] == "train")]
    records = records[records["step"] == step]
    settings = run.cells[run.cells["cell"] == cell].iloc[0]
    measured = spans.loc[spans["step"] == step, [*_PLACE, "start_s", "end_s"]]
    ranks = records[["rank", "replica", "stage"]].sort_values("rank")
    ideal = ideal_bars(measured, ranks, settings)
    ends = len(ranks) * ideal["end_s"].max() if len(ideal) else 0.0
    busy = (ideal["end_s"] - ideal["start_s"]).sum()
    sampled = records["sampled_edges"].notna().any()
    whole = cell in timed_as_a_whole(run)
    return Timeline(
        settings,
        step,
        float(records["wall_s"].max()),
        ranks,
        measured,
        ideal,
        bubble=None if whole else float(records["waited_s"].sum() / records["wall_s"].sum()),
        ideal_bubble=1.0 - float(busy / ends) if ends else None,
        sampling_s=float((records["step_s"] - records["wall_s"]).max()) if sampled else None,
    )


def ideal_bars(
    measured: pd.DataFrame, ranks: pd.DataFrame, settings: pd.Series[Any]
) -> pd.DataFrame:
    """The bars of the schedule on each replica, with the seconds measured for each micro-batch.

    Empty if the span of a micro-batch is missing where others of its kind are there; a stage with
    no span of a kind but forward has nothing to compute in it.
    """
    virtual, stages = int(settings["virtual_stages"]), int(settings["stages"])
    # A single stage takes one micro-batch after another, whatever the schedule of pipelines is.
    schedule = cast(ScheduleName, settings["schedule"] if stages > 1 else "1f1b")
    count = int(settings["microbatches"])
    kinds = _PASSES[: 3 if has_split_backward(schedule, stages) else 2]
    bars: list[tuple[object, ...]] = []
    seconds = (measured["end_s"] - measured["start_s"]).groupby(
        [measured[name] for name in _PLACE], observed=True
    )
    known = {cast(tuple[object, ...], key): float(s) for key, s in seconds.sum().items()}
    of_kind = {(rank, name, v) for rank, name, v, _ in known}
    for _, replica in ranks.sort_values("stage").groupby("replica"):
        numbers = [int(rank) for rank in replica["rank"]]
        holders = [
            place_of_virtual_stage(schedule, number, len(numbers))
            for number in range(virtual * len(numbers))
        ]
        costs: dict[str, list[list[float]]] = {}
        for kind in kinds:
            costs[kind] = []
            for stage, v in holders:
                rank = numbers[stage]
                free = kind != "forward" and (rank, kind, v) not in of_kind
                mine = [known.get((rank, kind, v, m), 0.0 if free else None) for m in range(count)]
                if None in mine or (rank, "forward", v) not in of_kind:
                    return pd.DataFrame(columns=measured.columns)
                costs[kind].append([one or 0.0 for one in mine])
        for slot in timeline(
            *(schedule, costs["forward"], costs["backward"], count),
            weights_s=costs.get("weights"),
            virtual_stages=virtual,
        ):
            action = slot.action
            if action.kind in kinds:
                place = (numbers[slot.stage], action.kind, action.virtual_stage, action.microbatch)
                bars.append((*place, slot.start_s, slot.end_s))
    return pd.DataFrame(bars, columns=measured.columns)


def cell_named(run: RunData, name: str) -> str:
    """The id of the cell with this id or start of one; raises InputError unless it is one."""
    ids = [str(cell) for cell in run.cells["cell"]]
    matches = [name] if name in ids else [cell for cell in ids if cell.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    found = f"{name} ({len(matches)} cells begin so)" if matches else name
    some = ", ".join((matches or ids)[:5]) + (", ..." if len(matches or ids) > 5 else "")
    raise InputError("timeline", "cell", found, some or "the cells of a run, and this has none")


def draw_timeline(run: RunData, cell: str) -> tuple[Figure, str]:
    """Measured above, ideal below, on one time axis, with a caption; numbers are micro-batches.

    A rank's later virtual stages have a dash at the number and a line across the foot for each
    before them. Raises InputError for a cell without spans of training.
    """
    of = measured_timeline(run, cell)
    rows = of.ranks.iloc[:MAX_RANKS]
    panels = 2 if len(of.ideal) else 1
    with styled():
        figure = new_figure(FULL_IN, 1.1 + panels * (0.3 + 0.24 * len(rows)))
        axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
        unit, scale = ("ms", 1e3) if of.wall_s < 1 else ("s", 1.0)
        _draw_panel(axes[0], of, rows, of.measured, of.wall_s, scale)
        broken = "\n" if figure_width(FULL_IN) < NARROW_IN else " "
        left_out = len(of.ranks) - len(rows)
        more = f", first {len(rows)} of {len(of.ranks)} ranks" if left_out else ""
        axes[0].set_title(
            f"{study_title(of.settings['model'], of.settings['data'])}\n{of.settings['layout']}, "
            f"train step {of.step}, measured:{broken}{_seconds(of.wall_s)}, "
            f"bubble {_percent(of.bubble)}{more}",
            loc="left",
        )
        if panels == 2:
            end = float(of.ideal["end_s"].max())
            schedule = f" {_schedule_title(of)}" if int(of.settings["stages"]) > 1 else ""
            _draw_panel(axes[1], of, rows, of.ideal, end, scale)
            axes[1].set_title(
                f"ideal{schedule}, measured seconds:{broken}{_seconds(end)}, bubble "
                f"{_percent(of.ideal_bubble)}",
                loc="left",
            )
        axes[-1].set_xlabel(f"time since the step's first barrier ({unit})")
        axes[-1].set_xlim(0, of.wall_s * scale)
        _add_legend(figure, {*of.measured["name"], "wait"})
    return figure, timeline_caption(of)


def _draw_panel(
    axes: Axes, of: Timeline, rows: pd.DataFrame, bars: pd.DataFrame, end_s: float, scale: float
) -> None:
    """One row a rank; waiting is drawn up to `end_s` and the bars over it."""
    inches = (figure_width(FULL_IN) - 1.2) / of.wall_s
    replicas = rows["replica"].nunique() > 1
    labels = []
    for number, (rank, replica, stage) in enumerate(rows.itertuples(index=False)):
        labels.append(f"rank {rank} ({f'r{replica} s{stage}' if replicas else f'stage {stage}'})")
        axes.broken_barh([(0, end_s * scale)], (number - 0.4, 0.8), color=_COLOURS["wait"])
        of_rank = bars[bars["rank"] == rank]
        for name, colour in _COLOURS.items():
            mine = of_rank[of_rank["name"] == name]
            style: dict[str, Any] = {"facecolors": colour, "edgecolors": "white", "linewidth": 0.3}
            axes.broken_barh(_spans(mine, scale), (number - 0.4, 0.8), **style)
            # Lines of virtual stages are seen where there is no room for a number, in grey too.
            for line in range(int(mine["virtual_stage"].max()) if len(mine) else 0):
                later = mine[mine["virtual_stage"] > line]
                foot = (number + 0.4 - (line + 1) * 0.13, 0.05)
                axes.broken_barh(_spans(later, scale), foot, facecolors="white")
        for bar in of_rank[of_rank["microbatch"].notna()].itertuples(index=False):
            text = f"{int(bar.microbatch)}{DASH * int(bar.virtual_stage)}"
            room = (bar.end_s - bar.start_s) * inches
            if bar.name != "wait" and room >= 0.065 * (len(text) + 0.4):
                colour = "white" if bar.name == "backward" else "black"
                centre = (bar.start_s + bar.end_s) / 2 * scale
                axes.text(
                    centre, number, text, ha="center", va="center_baseline", fontsize=6.5, c=colour
                )
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), labels)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)


def _spans(bars: pd.DataFrame, scale: float) -> list[tuple[float, float]]:
    lengths = bars["end_s"] - bars["start_s"]
    return list(zip(bars["start_s"] * scale, lengths * scale, strict=True))


def timeline_caption(of: Timeline) -> str:
    """What is drawn, what marks virtual stages, and what is separate."""
    count = int(of.settings["microbatches"])
    schedule = f", {_schedule_title(of)}" if int(of.settings["stages"]) > 1 else ""
    caption = (
        f"{of.settings['layout']}, {count} micro-batch{'es' if count > 1 else ''}{schedule}: "
        f"training step {of.step}, the one nearest the median, above the "
        "same schedule with the measured forward and backward seconds and nothing else. Each "
        "rank's own exit from the step's first barrier is its zero."
    )
    if of.settings["virtual_stages"] > 1:
        caption += (
            " 3' is micro-batch 3 in the rank's second virtual stage: a dash at a number, and a "
            "line across the foot of a bar, stand for each virtual stage before it."
        )
    lengths = (of.measured["end_s"] - of.measured["start_s"]).groupby(of.measured["name"]).sum()
    backward, weights = (float(lengths.get(name, 0.0)) for name in ("backward", "weights"))
    if weights >= LEAST_SHARE * (backward + weights) > 0:
        caption += " Backward is of inputs alone; the gradients of weights come later."
    if of.sampling_s is not None:
        caption += f" Before that it waited {1e3 * of.sampling_s:.3g} ms for its mini-batch."
    return caption


def _schedule_title(of: Timeline) -> str:
    name, virtual = str(of.settings["schedule"]), int(of.settings["virtual_stages"])
    name = {"gpipe": "GPipe", "1f1b": "1F1B"}.get(name, name)
    return name if virtual == 1 else f"{name}, {virtual} virtual stages a rank"


def _add_legend(figure: Figure, names: set[str]) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=colour, label="all-reduce" if name == "allreduce" else name)
        for name, colour in _COLOURS.items()
        if name in names
    ]
    across = len(handles) if figure.get_figwidth() >= NARROW_IN else 3
    figure.legend(handles=handles, loc="outside lower center", ncols=across)


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
