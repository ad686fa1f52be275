"""Figures of graphs: in chunks, of sampled mini-batches, and by whose code computes the layers.

Each may have published points. Docstrings of figures are their captions.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.figures.colours_and_style import (
    SERIES_STYLES,
    layout_order,
    layout_style,
    layout_styles,
)
from analysis.figures.model_on_data import ModelOnData
from analysis.figures.panels import series_figure, tidy
from analysis.summary.settings_in_words import COMPILED, IMPLEMENTATIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REBUILT = ", rebuilt"
"""Suffix of the mode of chunks whose edges are cut out of the graph in each layer."""
_MODES: dict[str, dict[str, Any]] = {
    "contiguous": {"marker": "o", "ls": ":"},
    "clustered": {"marker": "s", "ls": "--"},
    "halo": {"marker": "^", "ls": "-"},
    f"contiguous{_REBUILT}": {"marker": "X", "ls": "-."},
    f"clustered{_REBUILT}": {"marker": "P", "ls": "-."},
}
"""Marker and line style of a chunk mode."""
_MODE = ("chunks", "rebuild")
_LIBRARY = ("implementation", "sampler", "semantics")
_PIPELINE = (
    *("engine", "schedule", "virtual_stages", "balance", "activation_checkpointing", "bucket_mib"),
)
"""Settings that decide neither which edges are kept nor which nodes are computed."""


def chunk_time(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Seconds an epoch against the number of chunks."""
    if group.training.empty:
        return "no training step after warm-up"
    rows = tidy(group.training, "mean_s", "mean")
    return _against_chunks(group, rows, "epoch time (s)", published, "seconds", log=True)


def chunk_accuracy(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Accuracy after training against the number of chunks, mean and range over seeds."""
    cells = group.cells
    # Published accuracies are of the validation nodes.
    order = ("test_accuracy", "val_accuracy")[:: 1 if published is None else -1]
    known = [name for name in order if name in cells and cells[name].notna().any()]
    if "data_features" in cells and (cells["data_features"] == "made").all():
        return "features are made up, so accuracy says nothing"
    if not known:
        return "no accuracy in the results"
    keys = ["layout", "replicas", "microbatches", *{*_MODE, *group.variants}]
    by_settings = cells.groupby(keys, observed=True, dropna=False)[known[0]]
    rows = by_settings.agg(y="mean", low="min", high="max").reset_index().dropna(subset="y")
    label = f"{known[0].partition('_')[0]} accuracy"
    return _against_chunks(group, rows, label, published, "val_accuracy", zero=False)


def _against_chunks(
    group: ModelOnData,
    rows: pd.DataFrame,
    label: str,
    published: pd.DataFrame | None,
    column: str,
    **scale: Any,
) -> Figure | str:
    """A line a layout, or where there are several chunk modes a line a layout and mode."""
    rows = rows.assign(total=rows["microbatches"] * rows["replicas"])
    if published is None and (rows["total"] == 1).all():
        return "every cell computes the whole graph in one chunk"
    rebuild = rows["rebuild"] if "rebuild" in rows else group.cells["rebuild"].iloc[0]
    rows = rows.assign(mode=rows["chunks"], rebuild=rebuild)
    in_chunks = rows.loc[rows["total"] > 1, "chunks"].unique()
    if len(in_chunks) == 1:
        # The whole graph in one chunk has no mode of its own.
        rows["mode"] = in_chunks[0]
    rows["mode"] += rows["rebuild"].map({"layer": _REBUILT}).fillna("")
    rows["series"], styles = rows["layout"], layout_styles(rows["layout"])
    if rows["mode"].nunique() > 1:
        rows["series"] += ", " + rows["mode"]
        pairs = sorted(
            set(zip(rows["layout"], rows["mode"], strict=True)),
            key=lambda pair: (layout_order(pair[0]), pair[1]),
        )
        styles = {f"{n}, {mode}": {**layout_style(n).line, **_MODES[mode]} for n, mode in pairs}
    ticks, points = set(rows["total"]), None
    if published is not None:
        ticks |= set(published["chunk_count"])
        points = published.assign(series="published", x=published["chunk_count"])
        points["y"] = published[column]
    return series_figure(
        group,
        rows.assign(x=rows["total"]),
        ("chunks of the graph (all replicas)", label),
        styles=styles,
        ticks=sorted(ticks),
        but=_MODE,
        published=points,
        **scale,
    )


def framework_time(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Milliseconds an epoch on one device, the whole graph at once, by whose code computes the
    layers.
    """
    rows = group.training
    rows = rows[rows["stages"] * rows["replicas"] * rows["microbatches"] == 1]
    if "rebuild" in rows:
        rows = rows[rows["rebuild"] == "once"]
    if rows["implementation"].nunique() < 2:
        return "one framework alone on one device"
    compiled = rows["compile"].map(COMPILED) if "compile" in rows else ""
    device = rows["device"] if "device" in rows else group.cells["device"].iloc[0]
    rows = rows.assign(x=rows["implementation"].replace(IMPLEMENTATIONS) + compiled)
    rows = tidy(rows.assign(device=device, series="measured"), "mean_s", "mean", factor=1e3)
    rows["x"] += "\n" + rows["device"].str.upper()
    ticks, points = set(rows["x"]), None
    if published is not None:
        places = published["framework"] + "\n" + published["compute"]
        points = published.assign(series="published", x=places, y=published["epoch_ms"])
        ticks |= set(places)
    return series_figure(
        group,
        rows,
        ("framework and device", "epoch time (ms)"),
        styles={"measured": {**layout_style("seq").line, "ls": "none"}},
        # CPU before GPU, ours before the libraries.
        ticks=sorted(ticks, key=lambda at: ("CPU" not in at, not at.startswith("ours"), at)),
        but=("implementation", "compile", "device", *_MODE, *_PIPELINE),
        log=True,
        published=points,
    )


def epoch_time(group: ModelOnData, published: pd.DataFrame | None = None) -> Figure | str:
    """Seconds of an epoch of sampled mini-batches against the number of ranks, each with its own
    mini-batch, with intervals over runs.
    """
    rows = group.training.dropna(subset=["sampler", "epoch_s"])
    rows = rows[rows["stages"] == 1]
    if rows.empty:
        return "no epoch in the results, of ranks with a whole model each"
    rows = tidy(rows.assign(series=_libraries(rows), x=rows["replicas"]), "epoch_s", "epoch")
    names = sorted(set(rows["series"]), key=lambda name: (not name.startswith("ours"), name))
    ticks, points = sorted(set(rows["replicas"])), None
    if published is not None:
        points = published[published["ranks"].isin(ticks)]
        points = points[points["batch_size"].isin(rows["batch_size"])]
        points = points.assign(series=points["library"], x=points["ranks"], y=points["epoch_s"])
    return series_figure(
        group,
        rows,
        ("ranks", "epoch (s)"),
        styles=dict(zip(names, itertools.cycle(SERIES_STYLES), strict=False)),
        ticks=ticks,
        but=_LIBRARY,
        log=True,
        published=points,
    )


def _libraries(rows: pd.DataFrame) -> pd.Series[str]:
    """Whose loader and layers each row has: DGL, or `ours, once` where ours sampled in several
    ways.
    """
    sampler, layers = (
        rows[key].map(IMPLEMENTATIONS).fillna("ours") for key in ("sampler", "implementation")
    )
    ours, names = sampler == "ours", sampler
    if rows.loc[ours, "semantics"].nunique() > 1:
        names = names.where(~ours, "ours, " + rows["semantics"])
    return names.where(layers == sampler, names + ", layers of " + layers)
