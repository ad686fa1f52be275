"""Figures of what is learnt: loss against steps, and loss or accuracy against time.

Docstrings of figures are their captions.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pandas as pd

from analysis.figures.colours_and_style import (
    SERIES_STYLES,
    layout_order,
    layout_style,
    layout_styles,
)
from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import Styles, series_figure
from analysis.load.read_records import REPLICA_LOSS

if TYPE_CHECKING:
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
    series, styles = steps["layout"], layout_styles(steps["layout"])
    pairs, counts = set(zip(series, steps["microbatches"], strict=True)), set(steps["microbatches"])
    # Numbers of micro-batches have lines of their own where there are few.
    if len(counts) > 1 and len(pairs) <= _MAX_CURVES:
        series = series + ", " + steps["microbatches"].astype(str)
        names = sorted(pairs, key=lambda pair: (layout_order(pair[0]), pair[1]))
        widths = {m: 0.8 + 0.6 * m / max(counts) for m in counts}
        styles = {f"{n}, {m}": {**layout_style(n).line, "lw": widths[m]} for n, m in names}
    return _against_steps(group, steps.assign(series=series, y=steps["loss"]), styles)


def copies(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Training loss of the sequential run against that of the data-parallel copies."""
    steps = _with(group, "loss")
    layouts = sorted(set(steps.loc[steps["replicas"] > 1, "layout"]), key=layout_order)
    steps = steps[steps["layout"].isin(["seq", *layouts[:1]])]
    parts = [part for _, part in group.panels(steps) if part["layout"].nunique() == 2]
    if not parts or REPLICA_LOSS not in group.ranks:
        return "no sequential run besides a data-parallel one"
    steps, layout = pd.concat(parts), layouts[0]
    of_cells = steps.loc[steps["layout"] == layout, ["cell", *group.variants]].drop_duplicates()
    copy = group.ranks[group.ranks["phase"] == "train"].dropna(subset=[REPLICA_LOSS])
    names = f"{layout}, copy " + copy["replica"].astype(str)
    copy = copy.assign(series=names, y=copy[REPLICA_LOSS]).merge(of_cells, on="cell")
    alone = steps[steps["layout"] == "seq"]
    rows = pd.concat([alone.assign(series="seq", y=alone["loss"]), copy])
    styles = dict(zip(sorted(set(copy["series"])), itertools.cycle(SERIES_STYLES), strict=False))
    points = None
    if published is not None:
        words = {f"dp_copy{number}": f"{layout}, copy {number}" for number in (0, 1)}
        points = published.rename(columns={"step": "x", **words}).melt("x", None, "series", "y")
    return _against_steps(group, rows, layout_styles(["seq"]) | styles, points)


def _against_steps(
    group: ModelOnData,
    rows: pd.DataFrame,
    styles: Styles,
    published: pd.DataFrame | None = None,
) -> Figure:
    """The mean, lowest and highest loss over cells of each training step, by series."""
    keys = ["series", *group.variants, "step"]
    by_step = rows.groupby(keys, observed=True, dropna=False)["y"]
    curves = by_step.agg(y="mean", low="min", high="max").reset_index()
    return series_figure(
        group,
        curves.rename(columns={"step": "x"}),
        ("training step", "training loss"),
        styles=styles,
        zero=False,
        log=True,
        band=True,
        published=published,
    )


def learning_over_time(group: ModelOnData) -> Figure | str:
    """Accuracy, or the loss where no accuracy was recorded, against the seconds of training steps,
    mean over seeds and repeats; of each layout the fastest number of micro-batches.
    """
    metric = next((name for name in (*_METRICS, "loss") if len(_with(group, name))), None)
    if metric is None:
        return "neither accuracy nor loss in the records"
    steps = group.steps[group.steps["phase"] == "train"].sort_values(["cell", "step"])
    steps["x"] = steps.groupby("cell", observed=True)["step_s"].cumsum()
    steps = steps.dropna(subset=[metric])
    keys = ["layout", *group.variants]
    paces = steps.groupby([*keys, "microbatches"], dropna=False)["step_s"].mean().reset_index()
    fastest = paces.sort_values("step_s").drop_duplicates(keys).drop(columns="step_s")
    steps = steps.merge(fastest, on=[*keys, "microbatches"])
    means = steps.groupby([*keys, "step"], dropna=False)[["x", metric]].mean().reset_index()
    y, word = means[metric], _METRICS.get(metric)
    return series_figure(
        group,
        means.assign(series=means["layout"], y=y, low=y, high=y),
        ("time in training steps (s)", f"{word} accuracy" if word else "training loss"),
        zero=False,
        log=word is None,
        band=True,
    )


def _with(group: ModelOnData, metric: str) -> pd.DataFrame:
    """The training steps that recorded this metric."""
    steps = group.steps[group.steps["phase"] == "train"]
    return steps.dropna(subset=[metric]) if metric in steps else steps[:0]
