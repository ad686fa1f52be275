"""The timeline of a step: what each rank did, above the ideal of the same schedule.

Times are seconds since the first rank of a host left the step's first barrier, by the clock that
all ranks of the host share. The ideal is the same schedule with this step's measured forward and
backward seconds and nothing else (gnnhpc.core.schedules.timeline). Under a split backward,
`backward` is of inputs alone, and `weights` are bars of their own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from analysis.figures.colours_and_style import FULL_IN, figure_width, new_figure, styled
from analysis.figures.panels import add_legend
from analysis.render.number_text import significant
from analysis.summary.cell_measures import has_split_backward, timed_as_a_whole
from analysis.summary.settings_in_words import study_title
from gnnhpc.core.schedules import ScheduleName, place_of_virtual_stage, timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from analysis.load.run_data import RunData

MAX_RANKS = 16
"""The most rows that are readable on a page."""
_COLOURS = {
    "forward": "#56b4e9",
    "backward": "#0a5a8a",
    "weights": "#a9d6b8",
    "allreduce": "#d55e00",
    "optimizer": "#a8a100",
    "wait": "#e6e6e6",
}
_BAR = ["rank", "name", "virtual_stage", "microbatch", "start_s", "end_s"]


def draw_timeline(run: RunData, cell: str) -> Figure | str:
    """Measured above, ideal below, on one time axis; numbers are micro-batches.

    Of a rank's later virtual stages a number has a dash for each before them. Returns why there is
    none for a cell without spans of training.
    """
    spans, steps, records = (
        frame[(frame["cell"] == cell) & (frame["phase"] == "train")]
        for frame in (run.spans, run.steps, run.ranks)
    )
    steps = steps[steps["step"].isin(spans["step"].unique()) & ~steps["warmup"].astype(bool)]
    if steps.empty:
        return "the cell wrote no spans; set `spans: true` in the sweep"
    # The step after warm-up whose time is nearest the median.
    distance = (steps["wall_s"] - steps["wall_s"].median()).abs().to_numpy()
    step = int(steps["step"].to_numpy()[distance.argmin()])
    records = records[records["step"] == step].sort_values("rank")
    settings = _settings(run, cell)
    left_s = _left_barrier_s(records)
    measured = spans.loc[spans["step"] == step, _BAR]
    later_s = measured["rank"].map(left_s)
    measured = measured.assign(
        start_s=measured["start_s"] + later_s, end_s=measured["end_s"] + later_s
    )
    ideal = _ideal_bars(measured, records, settings)
    wall_s, ranks = float(records["wall_s"].max()), len(records)
    waited = float(records["waited_s"].sum() / records["wall_s"].sum())
    bubble = "unknown" if cell in timed_as_a_whole(run) else f"{waited:.1%}"
    title = f"{study_title(settings['model'], settings['data'])}\n{settings['layout']}, "
    title += f"train step {step}, measured:\n{significant(1e3 * wall_s, 3)} ms, bubble {bubble}"
    title += f", first {MAX_RANKS} of {ranks} ranks" if ranks > MAX_RANKS else ""
    # The last barrier is the same moment for all ranks, so that each row ends there.
    width_s = float((records["rank"].map(left_s) + records["wall_s"]).max())
    panels = [(measured, width_s, title)]
    if len(ideal):
        end_s = float(ideal["end_s"].max())
        idle = 1.0 - float((ideal["end_s"] - ideal["start_s"]).sum()) / (ranks * end_s)
        title = f"ideal{_schedule_title(settings)}, measured seconds:\n"
        title += f"{significant(1e3 * end_s, 3)} ms, bubble {idle:.1%}"
        panels.append((ideal, end_s, title))
    rows = records.iloc[:MAX_RANKS]
    with styled():
        figure = new_figure(FULL_IN, 1.3 + len(panels) * (0.4 + 0.24 * len(rows)))
        axes = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
        letter_s = 0.065 * width_s / (figure_width(FULL_IN) - 1.2)
        for one, (bars, end_s, title) in zip(axes, panels, strict=True):
            _draw_panel(one, rows, bars, end_s, letter_s)
            one.set_title(title, loc="left")
        axes[-1].set_xlabel("time since the step's first barrier (ms)")
        axes[-1].set_xlim(0, 1e3 * width_s)
        add_legend(figure, axes)
    return figure


def _left_barrier_s(records: pd.DataFrame) -> pd.Series[float]:
    """Rank -> seconds after the first rank of its host at which it left the first barrier."""
    start_s = records.set_index("rank")["start_s"]
    hosts = records.set_index("rank")["host"]
    return start_s - start_s.groupby(hosts, observed=True).transform("min")


def _ideal_bars(
    measured: pd.DataFrame, ranks: pd.DataFrame, settings: pd.Series[Any]
) -> pd.DataFrame:
    """The bars of the schedule on each replica, with the seconds measured for each micro-batch.

    Empty if the span of a micro-batch is missing where others of its kind are there; a stage with
    no span of a kind but forward has nothing to compute in it.
    """
    count, virtual, stages = (
        int(settings[name]) for name in ("microbatches", "virtual_stages", "stages")
    )
    # A single stage takes one micro-batch after another, whatever the schedule of pipelines is.
    schedule = cast(ScheduleName, settings["schedule"] if stages > 1 else "1f1b")
    kinds = ["forward", "backward", *(["weights"] if has_split_backward(schedule, stages) else [])]
    seconds = (measured["end_s"] - measured["start_s"]).groupby(
        [measured[name] for name in _BAR[:4]], observed=True
    )
    known = seconds.sum().to_dict()
    bars: list[tuple[object, ...]] = []
    for _, replica in ranks.sort_values("stage").groupby("replica"):
        numbers = [int(rank) for rank in replica["rank"]]
        costs: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
        for number in range(virtual * len(numbers)):
            stage, v = place_of_virtual_stage(schedule, number, len(numbers))
            for kind in kinds:
                places = [(numbers[stage], kind, v, m) for m in range(count)]
                mine = [known.get(place, math.nan) for place in places]
                nothing = kind != "forward" and all(map(math.isnan, mine))
                costs[kind].append([0.0] * count if nothing else mine)
        slots = timeline(
            *(schedule, costs["forward"], costs["backward"], count),
            weights_s=costs.get("weights"),
            virtual_stages=virtual,
        )
        for slot in slots:
            do = slot.action
            if do.kind in kinds:
                place = numbers[slot.stage], do.kind, do.virtual_stage, do.microbatch
                bars.append((*place, slot.start_s, slot.end_s))
    frame = pd.DataFrame(bars, columns=_BAR)
    return frame[:0] if frame["end_s"].isna().any() else frame


def _draw_panel(
    axes: Axes, rows: pd.DataFrame, bars: pd.DataFrame, end_s: float, letter_s: float
) -> None:
    """One row a rank; waiting is drawn up to `end_s` and the bars over it.

    A letter is as wide as `letter_s` seconds.
    """
    ranks = rows[["rank", "replica", "stage"]].itertuples(index=False)
    replicas, labels = rows["replica"].nunique() > 1, []
    for number, (rank, replica, stage) in enumerate(ranks):
        labels.append(f"rank {rank} ({f'r{replica} s{stage}' if replicas else f'stage {stage}'})")
        place = number - 0.4, 0.8
        axes.broken_barh([(0, 1e3 * end_s)], place, color=_COLOURS["wait"], label="wait")
        for name, mine in bars[bars["rank"] == rank].groupby("name", observed=True):
            starts, lengths = mine["start_s"], mine["end_s"] - mine["start_s"]
            axes.broken_barh(
                list(zip(1e3 * starts, 1e3 * lengths, strict=True)), place, edgecolors="white",
                facecolors=_COLOURS[str(name)], linewidth=0.3, label=str(name),
            )  # fmt: skip
            numbered = mine["microbatch"].notna() & (name != "wait")
            for bar, length in zip(mine[numbered].itertuples(), lengths[numbered], strict=True):
                text = f"{int(bar.microbatch)}" + "'" * int(bar.virtual_stage)
                if length >= letter_s * (len(text) + 0.4):
                    axes.text(
                        1e3 * (bar.start_s + length / 2), number, text, fontsize=6.5, ha="center",
                        va="center_baseline", c="white" if name == "backward" else "black",
                    )  # fmt: skip
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), labels)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)


def _settings(run: RunData, cell: str) -> pd.Series[Any]:
    """The row of a cell."""
    return run.cells[run.cells["cell"] == cell].iloc[0]


def timeline_caption(run: RunData, cell: str) -> str:
    """What is drawn, and what marks virtual stages."""
    settings = _settings(run, cell)
    count = int(settings["microbatches"])
    caption = (
        f"{settings['layout']}, {count} micro-batch{'es' if count > 1 else ''}"
        f"{_schedule_title(settings)}: the training step nearest the median, above the same "
        "schedule with the measured forward and backward seconds and nothing else. Time begins "
        "when the first rank of a host leaves the step's first barrier."
    )
    if settings["virtual_stages"] > 1:
        caption += " 3' is micro-batch 3 in the rank's second virtual stage."
    if has_split_backward(settings["schedule"], settings["stages"]):
        caption += " Backward is of inputs alone; the gradients of weights come later."
    return caption


def _schedule_title(settings: pd.Series[Any]) -> str:
    """The schedule of a pipeline, after a comma; empty for single stages."""
    if settings["stages"] == 1:
        return ""
    name, virtual = settings["schedule"], int(settings["virtual_stages"])
    return f", {name}" if virtual == 1 else f", {name}, {virtual} virtual stages a rank"
