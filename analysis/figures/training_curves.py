"""Figures of what is learnt: loss against steps, and loss and accuracy against time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import (
    add_legend,
    keep_words,
    layouts_in,
    panel_grid,
    title_panels,
)
from analysis.figures.style import SERIES_COLOURS, Dash, layout_style, styled
from analysis.load.read_records import REPLICA_LOSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_CURVES = 9
_METRICS = ("test_accuracy", "val_accuracy", "accuracy")
"""Metrics of a training step; the first that is recorded is shown against time."""


def training_loss(group: ModelOnData) -> Figure | str:
    """Mean training loss over seeds and repeats, a line a layout and micro-batches."""
    steps = _with(group, "loss")
    if steps.empty:
        return "no training loss in the records"
    with styled():
        parts = list(group.panels(steps))
        figure, axes = panel_grid(len(parts))
        title_panels(figure, axes, [title for title, _ in parts], group.title)
        # In all panels or in none: they share one legend.
        several = steps["microbatches"].nunique() > 1 and all(_are_few(part) for _, part in parts)
        for one, (_, part) in zip(axes, parts, strict=False):
            for place, name in enumerate(layouts_in(part)):
                _plot_layout(one, part[part["layout"] == name], place, name, several=several)
            _step_axis(one)
        _loss_axis(axes, steps["loss"])
        add_legend(figure, axes)
    return figure


def _are_few(steps: pd.DataFrame) -> bool:
    """Whether numbers of micro-batches may have lines of their own."""
    return len(steps[["layout", "microbatches"]].drop_duplicates()) <= _MAX_CURVES


def _plot_layout(axes: Axes, steps: pd.DataFrame, place: int, name: str, *, several: bool) -> None:
    """One line, or one a number of micro-batches, thicker for more."""
    style = layout_style(name)
    counts = sorted({int(count) for count in steps["microbatches"]}) if several else []
    for number, count in enumerate(counts or [0]):
        mine = steps[steps["microbatches"] == count] if counts else steps
        curve = _by_step(mine, "loss")
        # Markers at different steps for each layout keep equal curves apart.
        every = max(1, len(curve) // 6)
        label = f"{name}, {count}" if counts else name
        axes.plot(
            curve.index, curve["mean"], color=style.colour, ls=style.dash, label=label, ms=3,
            lw=0.8 + 0.6 * number / max(1, len(counts) - 1), marker=style.marker,
            markevery=(place % every, every),
        )  # fmt: skip
        _plot_band(axes, curve, label, style.colour)


def replica_losses(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Loss of the sequential run and of each replica of the smallest data-parallel layout.

    A panel for each combination of the variants that has both. `published` has the columns step,
    seq, dp_copy0 and dp_copy1. Without the loss of single replicas in the records, their mean is
    drawn.
    """
    steps = _with(group, "loss")
    parts = [
        (title, part)
        for title, part in group.panels(steps)
        if (part["replicas"] > 1).any() and (part["stages"] * part["replicas"] == 1).any()
    ]
    if not parts:
        return "no sequential run besides a data-parallel one"
    with styled():
        figure, axes = panel_grid(len(parts))
        title_panels(figure, axes, [title for title, _ in parts], group.title)
        for one, (_, part) in zip(axes, parts, strict=False):
            _plot_replicas(one, group, part)
            if published is not None:
                _plot_published(one, published)
            _step_axis(one)
        known = [] if published is None else [published[name] for name in ("seq", "dp_copy0")]
        _loss_axis(axes, pd.concat([steps["loss"], *known]))
        add_legend(figure, axes)
    return figure


def _plot_replicas(axes: Axes, group: ModelOnData, steps: pd.DataFrame) -> None:
    sequential = steps[steps["stages"] * steps["replicas"] == 1]
    style = layout_style("seq")
    _plot_range(axes, _by_step(sequential, "loss"), "seq", style.colour, style.dash)
    layout = layouts_in(steps[steps["replicas"] > 1])[0]
    for number, (name, curve) in enumerate(_replica_curves(group, steps, layout).items()):
        colour, dash = SERIES_COLOURS[number % len(SERIES_COLOURS)], ("--", ":")[number % 2]
        _plot_range(axes, curve, name, colour, dash)


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


def _plot_published(axes: Axes, points: pd.DataFrame) -> None:
    colours = {
        "seq": layout_style("seq").colour,
        "dp_copy0": SERIES_COLOURS[0],
        "dp_copy1": SERIES_COLOURS[1],
    }
    for column, colour in colours.items():
        label = "published" if column == "seq" else None
        axes.plot(
            points["step"], points[column], ls="none", marker="x", ms=4, color=colour, label=label
        )


def learning_over_time(group: ModelOnData) -> Figure | str:
    """Accuracy, or without one the loss, against the seconds of training steps; a line a layout.

    Each layout has its number of micro-batches that trains fastest. Seconds are those of the steps
    alone, so that checkpoints and evaluations, which depend on the sweep, do not count.
    """
    metric = next((name for name in (*_METRICS, "loss") if len(_with(group, name))), None)
    if metric is None:
        return "neither accuracy nor loss in the records"
    steps = group.steps[group.steps["phase"] == "train"].sort_values(["cell", "step"])
    seconds = steps.groupby("cell", observed=True)["step_s"].cumsum()
    steps = steps.assign(seconds=seconds).dropna(subset=[metric])
    with styled():
        parts = list(group.panels(steps))
        figure, axes = panel_grid(len(parts))
        title_panels(figure, axes, [title for title, _ in parts], group.title)
        for one, (_, part) in zip(axes, parts, strict=False):
            for place, name in enumerate(layouts_in(part)):
                mine, style = part[part["layout"] == name], layout_style(name)
                speed = mine.groupby("microbatches")["step_s"].mean()
                mine = mine[mine["microbatches"] == speed.idxmin()]
                curve = mine.groupby("step")[["seconds", metric]].mean()
                every = max(1, len(curve) // 6)
                one.plot(
                    curve["seconds"], curve[metric], color=style.colour, ls=style.dash, label=name,
                    marker=style.marker, ms=3, markevery=(place % every, every),
                )  # fmt: skip
                some = curve.iloc[:: max(1, len(curve) // 10)]
                keep_words(
                    one,
                    (
                        (x, y, f"{name}, step {step}: {y:.4g} after {x:.3g} s")
                        for step, x, y in some.itertuples(name=None)
                    ),
                )
            one.set_xlabel("time in training steps (s)")
            one.set_xlim(left=0)
        if metric == "loss":
            _loss_axis(axes, steps["loss"])
        else:
            kind = {"test_accuracy": "test", "val_accuracy": "validation"}.get(metric, "training")
            axes[0].set_ylabel(f"{kind} accuracy")
        add_legend(figure, axes)
    return figure


def _with(group: ModelOnData, metric: str) -> pd.DataFrame:
    """The training steps that recorded this metric."""
    if metric not in group.steps:
        return group.steps.iloc[:0]
    return group.steps[(group.steps["phase"] == "train") & group.steps[metric].notna()]


def _by_step(steps: pd.DataFrame, column: str) -> pd.DataFrame:
    """Mean, lowest and highest over cells of each training step."""
    return steps.groupby("step")[column].agg(["mean", "min", "max"])


def _plot_range(axes: Axes, curve: pd.DataFrame, label: str, colour: str, dash: Dash) -> None:
    """A line of means, with a band from the smallest to the largest."""
    axes.plot(curve.index, curve["mean"], color=colour, ls=dash, label=label)
    _plot_band(axes, curve, label, colour)


def _plot_band(axes: Axes, curve: pd.DataFrame, label: str, colour: str) -> None:
    """The band of a curve, and what ten of its points say."""
    if (curve["max"] > curve["min"]).any():
        axes.fill_between(curve.index, curve["min"], curve["max"], color=colour, alpha=0.12, lw=0)
    some = curve.iloc[:: max(1, len(curve) // 10)]
    for step, mean, low, high in some.itertuples(name=None):
        words = f"{label}, step {step}: {mean:.4g}, from {low:.4g} to {high:.4g}"
        keep_words(axes, [(float(step), mean, words)])


def _step_axis(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def _loss_axis(axes: list[Axes], losses: pd.Series[float]) -> None:
    axes[0].set_ylabel("training loss")
    if losses.min() > 0 and losses.max() > 20 * losses.min():
        axes[0].set_yscale("log")
