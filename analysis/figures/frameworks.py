"""Figures of whose code computes a graph's layers: time and accuracy on one device.

The published points are those of Dearing & Wang (GNNSys 2021), table 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.figures.graph_chunks import features_are_made_up
from analysis.figures.hover import tell, told_of_rows
from analysis.figures.panels import (
    add_legend,
    count_in_decades,
    error_bars,
    panel_grid,
    title_panels,
)
from analysis.figures.studies import Study
from analysis.figures.style import layout_look, styled
from analysis.summary.settings_in_words import IMPLEMENTATIONS as FRAMEWORKS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_APART = (
    *("implementation", "device", "rebuild", "chunks"),
    *("engine", "schedule", "virtual_stages", "balance", "activation_checkpointing", "bucket_mib"),
)
"""Settings that have no panel of their own here."""
_BESIDE = 0.22
"""How far a published point is from ours, in places."""


def framework_time(study: Study, published: pd.DataFrame | None = None) -> Figure | str:
    """Milliseconds an epoch, with the intervals of the means."""
    rows = study.summary[study.summary["phase"] == "train"]
    rows = _on_one_device(study, rows).dropna(subset=["mean_s"])
    rows = rows.assign(
        mean_ms=1e3 * rows["mean_s"], low_ms=1e3 * rows["mean_low"], high_ms=1e3 * rows["mean_high"]
    )
    return _draw(
        study,
        rows,
        "mean_ms",
        ("low_ms", "high_ms"),
        "epoch time (ms)",
        None if published is None else published.assign(shown=published["avg_epoch_ms"]),
        log=True,
    )


def framework_accuracy(study: Study, published: pd.DataFrame | None = None) -> Figure | str:
    """Accuracy of test nodes after training, mean and range over seeds and repeats."""
    if "test_accuracy" not in study.cells or study.cells["test_accuracy"].isna().all():
        return "no test accuracy in the results"
    if features_are_made_up(study):
        return "features are made up, so accuracy says nothing"
    cells = _on_one_device(study, study.cells)
    keys = dict.fromkeys(["implementation", "device", "layout", "microbatches", *study.variants])
    rows = (
        cells.groupby(list(keys), observed=True, dropna=False)["test_accuracy"]
        .agg(["mean", "min", "max"])
        .reset_index()
        .dropna(subset=["mean"])
    )
    return _draw(
        study,
        rows,
        "mean",
        ("min", "max"),
        "test accuracy",
        None if published is None else published.assign(shown=published["test_acc"]),
    )


def _on_one_device(study: Study, rows: pd.DataFrame) -> pd.DataFrame:
    """Of the whole graph, cut once; with the device, which is a column only where it varies."""
    alone = (rows["stages"] * rows["replicas"] == 1) & (rows["microbatches"] == 1)
    if "rebuild" in rows:
        alone &= rows["rebuild"] == "once"
    mine = rows[alone]
    if "device" in mine:
        return mine
    return mine.assign(device=study.cells["device"].iloc[0])


def _draw(
    study: Study,
    rows: pd.DataFrame,
    column: str,
    interval: tuple[str, str],
    unit: str,
    published: pd.DataFrame | None,
    *,
    log: bool = False,
) -> Figure | str:
    """A place for each framework and device, ours and published; a panel for other settings."""
    if rows["implementation"].nunique() < 2:
        return "one framework alone on one device"
    rows = rows.assign(place=[_place(r["implementation"], r["device"]) for _, r in rows.iterrows()])
    places = list(dict.fromkeys(sorted(rows["place"], key=_order)))
    if published is not None:
        published = published.assign(place=published["framework"] + "\n" + published["compute"])
        places = sorted({*places, *published["place"]}, key=_order)
    parts = list(study.panels(rows, but=_APART))
    with styled():
        figure, axes = panel_grid(len(parts))
        title_panels(figure, axes, [title for title, _ in parts], study.title)
        for one, (_, part) in zip(axes, parts, strict=False):
            _draw_ours(one, part, column, interval, places)
            if published is not None:
                _draw_published(one, published, places)
            one.set_xticks(range(len(places)), places)
            one.set_xlim(-0.5, len(places) - 0.5)
            one.grid(visible=False, axis="x")
            one.set_xlabel("framework and device")
        if log:
            count_in_decades(axes[0])
        axes[0].set_ylabel(unit)
        add_legend(figure, axes)
    return figure


def _place(implementation: object, device: object) -> str:
    name = str(implementation)
    return f"{FRAMEWORKS.get(name, name)}\n{str(device).upper()}"


def _order(place: str) -> tuple[bool, bool, str]:
    """CPU before GPU, ours before the libraries."""
    framework, _, device = place.partition("\n")
    return device != "CPU", framework != "ours", framework


def _draw_ours(
    axes: Axes,
    rows: pd.DataFrame,
    column: str,
    interval: tuple[str, str],
    places: Sequence[str],
) -> None:
    style = layout_look("seq")
    across = [float(places.index(place)) for place in rows["place"]]
    axes.plot(
        across, rows[column], ls="none", marker=style.marker, c=style.colour, label="seq, measured"
    )
    error_bars(axes, across, rows, column, interval)
    told = told_of_rows(across, rows, "microbatches", column, interval)
    names = [place.replace("\n", ", ") for place in rows["place"]]
    tell(
        axes,
        [(x, y, f"{n}: {w.partition(': ')[2]}") for (x, y, w), n in zip(told, names, strict=True)],
    )


def _draw_published(axes: Axes, points: pd.DataFrame, places: Sequence[str]) -> None:
    look: dict[str, Any] = {"ls": "none", "marker": "x", "color": "#606060"}
    axes.plot(
        [places.index(place) + _BESIDE for place in points["place"]],
        points["shown"],
        label="published",
        **look,
    )
