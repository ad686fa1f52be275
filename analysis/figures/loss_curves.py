"""Figures of training loss: by layout, and of the sequential run beside data-parallel replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.figures.hover import tell
from analysis.figures.panels import add_legend, layouts_in, panel_grid, title_panels
from analysis.figures.studies import Study
from analysis.figures.style import SERIES_COLOURS, layout_look, styled
from analysis.load.read_records import REPLICA_LOSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_CURVES = 9


def training_loss(study: Study) -> Figure | str:
    """Mean training loss over seeds and repeats, a line a layout and micro-batches."""
    steps = _losses(study)
    if steps.empty:
        return "no training loss in the records"
    with styled():
        parts = list(study.panels(steps))
        figure, axes = panel_grid(len(parts))
        title_panels(figure, axes, [title for title, _ in parts], study.title)
        several = steps["microbatches"].nunique() > 1
        # In all panels or in none: they share one legend.
        apart = several and all(_may_be_apart(part) for _, part in parts)
        for one, (_, part) in zip(axes, parts, strict=False):
            _draw_curves(one, part, apart=apart)
            _step_axis(one)
        _loss_axis(axes, steps["loss"])
        add_legend(figure, axes)
    return figure


def replica_losses(study: Study, published: pd.DataFrame | None = None) -> Figure | str:
    """Loss of the sequential run and of each replica of the smallest data-parallel layout.

    A panel for each combination of the variants that has both. As in Raffi & Dazzi 2024, figure
    3, whose points are `published` (step, seq, dp_copy0, dp_copy1). Without the loss of single
    replicas in the records, their mean is drawn.
    """
    steps = _losses(study)
    parts = [
        (title, part)
        for title, part in study.panels(steps)
        if (part["replicas"] > 1).any() and (part["stages"] * part["replicas"] == 1).any()
    ]
    if not parts:
        return "no sequential run beside a data-parallel one"
    with styled():
        figure, axes = panel_grid(len(parts))
        title_panels(figure, axes, [title for title, _ in parts], study.title)
        for one, (_, part) in zip(axes, parts, strict=False):
            _draw_copies(one, study, part)
            if published is not None:
                _draw_published(one, published)
            _step_axis(one)
        _loss_axis(axes, pd.concat([steps["loss"], *_published_losses(published)]))
        add_legend(figure, axes)
    return figure


def _draw_copies(axes: Axes, study: Study, steps: pd.DataFrame) -> None:
    """The sequential run, and each replica of the smallest data-parallel layout."""
    sequential = steps[steps["stages"] * steps["replicas"] == 1]
    style = layout_look("seq")
    _draw_range(axes, _by_step(sequential["loss"], sequential), "seq", style.colour, style.dash)
    parallel = layouts_in(steps[steps["replicas"] > 1])
    for number, (name, curve) in enumerate(_replica_curves(study, steps, parallel[0]).items()):
        colour, dash = SERIES_COLOURS[number % len(SERIES_COLOURS)], ("--", ":")[number % 2]
        _draw_range(axes, curve, name, colour, dash)


def _by_step(losses: pd.Series[float], steps: pd.DataFrame) -> pd.DataFrame:
    """Mean, lowest and highest over cells of each training step."""
    return losses.groupby(steps["step"]).agg(["mean", "min", "max"])


def _draw_range(
    axes: Axes, curve: pd.DataFrame, label: str, colour: str, dash: str | tuple[float, Any]
) -> None:
    """A line of means, with a band from the smallest to the largest."""
    axes.plot(curve.index, curve["mean"], color=colour, ls=dash, label=label)
    _draw_band(axes, curve, label, colour)


def _draw_band(axes: Axes, curve: pd.DataFrame, label: str, colour: str) -> None:
    """The band of a curve, and what ten of its points say."""
    if (curve["max"] > curve["min"]).any():
        axes.fill_between(curve.index, curve["min"], curve["max"], color=colour, alpha=0.12, lw=0)
    some = curve.iloc[:: max(1, len(curve) // 10)]
    for step, mean, low, high in some.itertuples(name=None):
        words = f"{label}, step {step}: {mean:.4g}, from {low:.4g} to {high:.4g}"
        tell(axes, [(float(step), mean, words)])


def _replica_curves(study: Study, steps: pd.DataFrame, layout: str) -> dict[str, pd.DataFrame]:
    """Label -> losses by step of each replica, or over all if not recorded singly."""
    ranks = study.ranks
    if REPLICA_LOSS not in ranks or ranks[REPLICA_LOSS].isna().all():
        mine = steps[steps["layout"] == layout]
        return {f"{layout}, all copies": _by_step(mine["loss"], mine)}
    cells = steps.loc[steps["layout"] == layout, "cell"].unique()
    known = ranks[(ranks["phase"] == "train") & ranks[REPLICA_LOSS].notna()]
    own = known[known["cell"].isin(cells)]
    copies = {number: own[own["replica"] == number] for number in sorted(set(own["replica"]))}
    return {
        f"{layout}, copy {int(number)}": _by_step(copy[REPLICA_LOSS], copy)
        for number, copy in copies.items()
    }


def _published_losses(published: pd.DataFrame | None) -> list[pd.Series[float]]:
    return [] if published is None else [published[name] for name in ("seq", "dp_copy0")]


def _draw_published(axes: Axes, points: pd.DataFrame) -> None:
    colours = {
        "seq": layout_look("seq").colour,
        "dp_copy0": SERIES_COLOURS[0],
        "dp_copy1": SERIES_COLOURS[1],
    }
    for column, colour in colours.items():
        axes.plot(
            points["step"],
            points[column],
            ls="none",
            marker="x",
            ms=4,
            color=colour,
            label="published" if column == "seq" else None,
        )


def _losses(study: Study) -> pd.DataFrame:
    return study.steps[(study.steps["phase"] == "train") & study.steps["loss"].notna()]


def _may_be_apart(steps: pd.DataFrame) -> bool:
    """Whether numbers of micro-batches may have lines of their own: there are not too many."""
    return len(steps[["layout", "microbatches"]].drop_duplicates()) <= _MAX_CURVES


def _draw_curves(axes: Axes, steps: pd.DataFrame, *, apart: bool) -> None:
    """A line a layout, or `apart` a line a number of micro-batches, thicker for more."""
    for place, name in enumerate(layouts_in(steps)):
        mine = steps[steps["layout"] == name]
        counts = sorted({int(count) for count in mine["microbatches"]}) if apart else []
        if not counts:
            _draw_curve(axes, mine, place, name, 1.2)
        for number, count in enumerate(counts):
            width = 0.8 + 0.6 * number / max(1, len(counts) - 1)
            part = mine[mine["microbatches"] == count]
            _draw_curve(axes, part, place, f"{name}, {count}", width)


def _draw_curve(axes: Axes, steps: pd.DataFrame, place: int, label: str, width: float) -> None:
    """The mean over cells of one layout, with a band from the smallest to the largest."""
    curve = _by_step(steps["loss"], steps)
    style = layout_look(str(steps["layout"].iloc[0]))
    # Markers at different steps for each layout keep equal curves apart.
    every = max(1, len(curve) // 6)
    axes.plot(
        curve.index,
        curve["mean"],
        color=style.colour,
        ls=style.dash,
        lw=width,
        marker=style.marker,
        ms=3,
        markevery=(place % every, every),
        label=label,
    )
    _draw_band(axes, curve, label, style.colour)


def _step_axis(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def _loss_axis(axes: list[Axes], losses: pd.Series[float]) -> None:
    axes[0].set_ylabel("training loss")
    if losses.min() > 0 and losses.max() > 20 * losses.min():
        axes[0].set_yscale("log")
