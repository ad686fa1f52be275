"""Figures of what is learnt: loss against steps, and loss or accuracy against time.

Docstrings of figures are their captions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import draw_panels, layouts_in
from analysis.figures.style import SERIES_COLOURS, layout_style
from analysis.load.read_records import REPLICA_LOSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_CURVES = 9
_METRICS = {"test_accuracy": "test", "val_accuracy": "validation", "accuracy": "training"}
"""Metrics of a training step; the first that is recorded is shown against time."""


def loss(group: ModelOnData) -> Figure | str:
    """Training loss, mean over seeds and repeats; bands are their range. Numbers are
    micro-batches.
    """
    steps = _with(group, "loss")
    if steps.empty:
        return "no training loss in the records"
    # Numbers of micro-batches have lines of their own where there are few.
    keys = ["layout", "microbatches"]
    most = max(len(part[keys].drop_duplicates()) for _, part in group.panels(steps))
    several = steps["microbatches"].nunique() > 1 and most <= _MAX_CURVES

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        for place, name in enumerate(layouts_in(part)):
            mine, style = part[part["layout"] == name], layout_style(name)
            counts = sorted(set(mine["microbatches"])) if several else [None]
            for number, count in enumerate(counts):
                chosen = mine if count is None else mine[mine["microbatches"] == count]
                curve = _by_step(chosen, "loss")
                # Markers at different steps for each layout keep equal curves apart.
                every = max(1, len(curve) // 6)
                _plot_range(
                    axes, curve, name if count is None else f"{name}, {count}", ls=style.dash,
                    color=style.colour, lw=0.8 + 0.6 * number / max(1, len(counts) - 1), ms=3,
                    marker=style.marker, markevery=(place % every, every),
                )  # fmt: skip
        _step_axis(axes)
        _loss_axis(axes, steps["loss"])

    return draw_panels(group, steps, draw, "training loss")


def copies(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Training loss of the sequential run against that of the data-parallel copies."""
    parts = [
        part
        for _, part in group.panels(_with(group, "loss"))
        if (part["replicas"] > 1).any() and (part["stages"] * part["replicas"] == 1).any()
    ]
    if not parts:
        return "no sequential run besides a data-parallel one"
    steps = pd.concat(parts)

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        alone = part[part["stages"] * part["replicas"] == 1]
        _plot_range(axes, _by_step(alone, "loss"), "seq", color=layout_style("seq").colour)
        layout = layouts_in(part[part["replicas"] > 1])[0]
        for number, (name, curve) in enumerate(_replica_curves(group, part, layout).items()):
            colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
            _plot_range(axes, curve, name, color=colour, ls=("--", ":")[number % 2])
        if published is not None:
            colours = (layout_style("seq").colour, *SERIES_COLOURS)
            for column, colour in zip(("seq", "dp_copy0", "dp_copy1"), colours, strict=False):
                axes.plot(
                    published["step"], published[column], ls="none", marker="x", ms=4, color=colour,
                    label="published" if column == "seq" else None,
                )  # fmt: skip
        _step_axis(axes)
        known = [] if published is None else [published["seq"], published["dp_copy0"]]
        _loss_axis(axes, pd.concat([steps["loss"], *known]))

    return draw_panels(group, steps, draw, "training loss")


def _replica_curves(
    group: ModelOnData, steps: pd.DataFrame, layout: str
) -> dict[str, pd.DataFrame]:
    """Label -> losses by step of each replica, or over all if not recorded for each."""
    ranks, mine = group.ranks, steps[steps["layout"] == layout]
    if REPLICA_LOSS not in ranks or ranks[REPLICA_LOSS].isna().all():
        return {f"{layout}, all copies": _by_step(mine, "loss")}
    known = ranks[(ranks["phase"] == "train") & ranks[REPLICA_LOSS].notna()]
    known = known[known["cell"].isin(mine["cell"].unique())]
    return {
        f"{layout}, copy {number}": _by_step(copy, REPLICA_LOSS)
        for number, copy in known.groupby("replica")
    }


def learning_over_time(group: ModelOnData) -> Figure | str:
    """Accuracy, or the loss where no accuracy was recorded, against the seconds of training steps,
    mean over seeds and repeats; of each layout the fastest number of micro-batches.
    """
    metric = next((name for name in (*_METRICS, "loss") if len(_with(group, name))), None)
    if metric is None:
        return "neither accuracy nor loss in the records"
    steps = group.steps[group.steps["phase"] == "train"].sort_values(["cell", "step"])
    seconds = steps.groupby("cell", observed=True)["step_s"].cumsum()
    steps = steps.assign(seconds=seconds).dropna(subset=[metric])

    def curve_of(mine: pd.DataFrame) -> pd.DataFrame:
        speed = mine.groupby("microbatches")["step_s"].mean()
        fastest = mine[mine["microbatches"] == speed.idxmin()]
        return fastest.groupby("step")[["seconds", metric]].mean()

    longest = max(
        curve_of(mine)["seconds"].max()
        for _, part in group.panels(steps)
        for _, mine in part.groupby("layout", observed=True)
    )

    def draw(axes: Axes, part: pd.DataFrame) -> None:
        for place, name in enumerate(layouts_in(part)):
            style, curve = layout_style(name), curve_of(part[part["layout"] == name])
            every = max(1, len(curve) // 6)
            axes.plot(
                curve["seconds"], curve[metric], color=style.colour, ls=style.dash, label=name,
                marker=style.marker, ms=3, markevery=(place % every, every),
            )  # fmt: skip
        axes.set_xlabel("time in training steps (s)")
        axes.set_xlim(0, 1.03 * longest)
        if metric == "loss":
            _loss_axis(axes, steps["loss"])

    label = "training loss" if metric == "loss" else f"{_METRICS[metric]} accuracy"
    return draw_panels(group, steps, draw, label)


def _with(group: ModelOnData, metric: str) -> pd.DataFrame:
    """The training steps that recorded this metric."""
    if metric not in group.steps:
        return group.steps.iloc[:0]
    return group.steps[(group.steps["phase"] == "train") & group.steps[metric].notna()]


def _by_step(steps: pd.DataFrame, column: str) -> pd.DataFrame:
    """Mean, lowest and highest over cells of each training step."""
    return steps.groupby("step")[column].agg(["mean", "min", "max"])


def _plot_range(axes: Axes, curve: pd.DataFrame, label: str, **style: Any) -> None:
    """A line of means, with a band from the smallest to the largest."""
    axes.plot(curve.index, curve["mean"], label=label, **style)
    if (curve["max"] > curve["min"]).any():
        band = {"color": style["color"], "alpha": 0.12, "lw": 0}
        axes.fill_between(curve.index, curve["min"], curve["max"], **band)


def _step_axis(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def _loss_axis(axes: Axes, losses: pd.Series[float]) -> None:
    if losses.min() > 0 and losses.max() > 20 * losses.min():
        axes.set_yscale("log")
