"""Figures of training on sampled mini-batches: the parts of a step, and scaling over ranks.

Published seconds are those of Boca's table 2, an epoch's. Colours are layouts, markers and line
styles whose loader and layers they are; the parts of a step differ by lightness and hatch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.figures.hover import tell, told_of_rows
from analysis.figures.panels import (
    add_legend,
    count_in_decades,
    error_bars,
    layouts_in,
    panel_grid,
    title_panels,
)
from analysis.figures.studies import Study
from analysis.figures.style import layout_look, layout_order, styled
from analysis.summary.settings_in_words import IMPLEMENTATIONS as FRAMEWORKS
from analysis.summary.settings_in_words import SAMPLERS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_APART = ("implementation", "sampler", "semantics")
"""Settings that have no panel of their own here."""
_PARTS = {
    "drawing": ("wait for drawing", "#8a8a8a", "////"),
    "gathering": ("wait for features", "#bdbdbd", "...."),
    "compute_ms": ("computing", "#0a5a8a", ""),
    "allreduce_ms": ("averaging gradients", "#d55e00", "xxxx"),
    "waiting": ("waiting for ranks, and rest", "#f4f4f4", ""),
    "rest": ("rest", "#d0d0d0", "----"),
}
"""Columns of the parts of a step: legend, colour, hatch; from the bottom of a bar to its top. One
that a row does not have is nan."""
_LOOKS: tuple[tuple[str, Any], ...] = (
    ("o", "-"), ("D", (0, (5, 1.2, 1, 1.2))), ("s", "--"), ("^", ":"), ("P", (0, (1, 3))),
)  # fmt: skip
"""Marker and line style of the first library, the second, ..."""
_ROOM = 1.25
"""How far the axis of bars reaches above the highest; an interval may go on beyond it."""
_ABOVE_PT = 4.0
"""Between the axis's end, where an interval may have its arrow, and a library's name."""
_LINE_PT = 8.0
"""Height of a line of such a name."""


def step_parts(study: Study) -> Figure | str:
    """Milliseconds of a step and of its parts, a bar a library and layout."""
    rows = _with_parts(_sampled_rows(study))
    if rows.empty:
        return "no training step after warm-up"
    parts = list(study.panels(rows, but=_APART))
    with styled():
        figure, axes = panel_grid(len(parts))
        title_panels(figure, axes, [title for title, _ in parts], study.title)
        top = _ROOM * float(rows["mean_ms"].max())
        for one, (_, part) in zip(axes, parts, strict=False):
            _draw_bars(one, part, top)
        axes[0].set_ylabel("step (ms)")
        axes[0].set_ylim(0.0, top)
        _raise_titles(figure, axes)
        add_legend(figure, axes)
    return figure


def epoch_time(study: Study, published: pd.DataFrame | None = None) -> Figure | str:
    """Seconds of an epoch against ranks, with intervals over runs."""
    rows = _of_whole_models(study).dropna(subset=["epoch_s"])
    if rows.empty:
        return "no epoch in the results, of ranks with a whole model each"
    with styled():
        figure, axes = _over_ranks(study, rows, "epoch_s", published)
        axes[0].set_ylabel("epoch (s)")
        count_in_decades(axes[0])
        add_legend(figure, axes, _handles(rows, published))
    return figure


def epoch_speedup(study: Study) -> Figure | str:
    """Speedup of an epoch against ranks, and the ideal, which is as many as there are ranks."""
    rows = _of_whole_models(study).dropna(subset=["speedup"])
    if rows["replicas"].nunique() < 2:
        return "one number of ranks alone, or no valid baseline to compare with"
    with styled():
        base = study.baseline.layout.replicas if study.baseline else 1
        ideal = [count / base for count in sorted({int(count) for count in rows["replicas"]})]
        top = _ROOM * max(ideal[-1], float(rows["speedup"].max()))
        figure, axes = _over_ranks(study, rows, "speedup", None, top)
        for one in axes:
            one.plot(range(len(ideal)), ideal, color="#606060", lw=0.8, label="ideal")
            one.set_ylim(0.0, top)
        axes[0].set_ylabel(f"speedup over {study.baseline_name} (ratio)")
        add_legend(figure, axes, _handles(rows, None))
    return figure


def _sampled_rows(study: Study) -> pd.DataFrame:
    """Of training on sampled mini-batches, with the name of whose loader and layers they are."""
    rows = study.summary[study.summary["phase"] == "train"].dropna(subset=["mean_s"])
    rows = rows[rows["sampler"].notna()]
    ours = rows.loc[rows["sampler"] == "ours", "semantics"].nunique() > 1
    names = [_library(row, told=ours) for row in rows.to_dict("records")]
    return rows.assign(library=names)


def _of_whole_models(study: Study) -> pd.DataFrame:
    """Without pipelines, whose ranks share a mini-batch's model."""
    rows = _sampled_rows(study)
    return rows[rows["stages"] == 1]


def _library(row: dict[Any, Any], *, told: bool) -> str:
    """Such as DGL, or `ours, once` where ours drew in several ways (`told`)."""
    sampler = SAMPLERS[str(row["sampler"])]
    layers = FRAMEWORKS.get(str(row["implementation"]), "ours")
    name = f"{sampler}, {row['semantics']}" if told and sampler == "ours" else sampler
    return name if layers == sampler else f"{name} before layers of {layers}"


def _libraries(rows: pd.DataFrame) -> list[str]:
    return sorted(set(rows["library"]), key=lambda name: (not name.startswith("ours"), name))


def _with_parts(rows: pd.DataFrame) -> pd.DataFrame:
    """With the parts of a step in milliseconds, which add up to it.

    What is left holds waiting for ranks and the rest, such as what lies between spans, which
    records do not tell apart; of one rank, which waits for nobody, it is the rest alone.

    What a step waits for its mini-batch is divided as its making was: of a library's loader,
    whose drawing has no time of its own, the ranks copy features themselves, and the rest is
    waiting for the loader.
    """
    ms = 1e3
    waited = rows["data_s"]
    known = rows["gather_s"] / (rows["sample_s"] + rows["gather_s"])
    copied = (waited * known).fillna(rows["gather_s"].clip(upper=waited)).fillna(0.0)
    left = rows["mean_s"] - waited - rows["compute_s"] - rows["allreduce_s"]
    left = ms * left.clip(lower=0.0)
    several = rows["stages"] * rows["replicas"] > 1
    return rows.assign(
        mean_ms=ms * rows["mean_s"],
        low_ms=ms * rows["mean_low"],
        high_ms=ms * rows["mean_high"],
        drawing=ms * (waited - copied),
        gathering=ms * copied,
        compute_ms=ms * rows["compute_s"],
        allreduce_ms=ms * rows["allreduce_s"],
        waiting=left.where(several),
        rest=left.where(~several),
    )


def _draw_bars(axes: Axes, rows: pd.DataFrame, top: float) -> None:
    """A group of bars a library, in it one a layout, whose name stands below it; the library's is
    above the axis, which ends at `top`, so that no interval is behind it.
    """
    places: list[float] = []
    names: list[str] = []
    centres: list[float] = []
    ordered: list[Any] = []
    for library in _libraries(rows):
        mine = rows[rows["library"] == library]
        mine = mine.sort_values("layout", key=lambda column: column.map(layout_order))
        first = places[-1] + 1.6 if places else 0.0
        places += [first + number for number in range(len(mine))]
        centres.append(first + (len(mine) - 1) / 2)
        names += [str(name) for name in mine["layout"]]
        ordered += mine.to_dict("records")
    table = type(rows)(ordered)
    bottom = [0.0] * len(table)
    for column, (label, colour, hatch) in _PARTS.items():
        if table[column].isna().all():
            continue
        heights = table[column].fillna(0.0)
        axes.bar(
            places, heights, 0.8, bottom, label=label, facecolor=colour, hatch=hatch,
            edgecolor="#404040", linewidth=0.4,
        )  # fmt: skip
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    error_bars(axes, places, table, "mean_ms", ("low_ms", "high_ms"), top)
    tell(axes, [(x, y, words) for x, y, words in _told(places, table)])
    axes.set_xticks(places, names, rotation=90)
    for tick, name in zip(axes.get_xticklabels(), names, strict=True):
        tick.set_color(layout_look(name).colour)
    axes.set_xlabel("layout")
    _name_libraries(axes, centres, [name.replace(", ", "\n") for name in _libraries(rows)])
    axes.grid(visible=False, axis="x")


def _name_libraries(axes: Axes, centres: Sequence[float], names: Sequence[str]) -> None:
    """Above the axis."""
    for centre, name in zip(centres, names, strict=True):
        axes.annotate(
            name, (centre, 1.0), (0.0, _ABOVE_PT), xycoords=axes.get_xaxis_transform(),
            textcoords="offset points", ha="center", va="bottom", fontsize=6.5,
        )  # fmt: skip


def _raise_titles(figure: Figure, axes: Sequence[Axes]) -> None:
    """Above the libraries' names, for which the figure grows; all panels' alike."""
    lines = max(text.get_text().count("\n") + 1 for one in axes for text in one.texts)
    for one in axes:
        title = one.get_title(loc="left")
        one.set_title(title, loc="left", pad=2 * _ABOVE_PT + lines * _LINE_PT)
    down = len({one.get_position().y0 for one in axes})
    more = down * (_ABOVE_PT + lines * _LINE_PT) / 72
    figure.set_figheight(figure.get_figheight() + more)


def _told(places: Sequence[float], rows: pd.DataFrame) -> list[tuple[float, float, str]]:
    """Library, layout, and the milliseconds of each part."""
    found = []
    for x, row in zip(places, rows.to_dict("records"), strict=True):
        parts = ", ".join(
            f"{label} {row[name]:.3g}"
            for name, (label, _, _) in _PARTS.items()
            if not math.isnan(row[name])
        )
        words = f"{row['library']}, {row['layout']}: {row['mean_ms']:.4g} ms ({parts})"
        found.append((x, float(row["mean_ms"]), words))
    return found


def _over_ranks(
    study: Study,
    rows: pd.DataFrame,
    column: str,
    published: pd.DataFrame | None,
    top: float = math.inf,
) -> tuple[Figure, list[Axes]]:
    """A line a library against the number of ranks, with its points in the layouts' colours; the
    axis ends at `top`.

    Numbers of ranks are at equal distances, libraries side by side so that intervals are seen.
    """
    parts = list(study.panels(rows, but=_APART))
    libraries = _libraries(rows)
    figure, axes = panel_grid(len(parts))
    title_panels(figure, axes, [title for title, _ in parts], study.title)
    ranks = sorted({int(count) for count in rows["replicas"]})
    stem = column.removesuffix("_s")
    interval = (f"{stem}_low", f"{stem}_high")
    for one, (_, part) in zip(axes, parts, strict=False):
        for number, library in enumerate(libraries):
            mine = part[part["library"] == library].sort_values("replicas")
            if mine.empty:
                continue
            marker, dash = _look(number)
            shift = (number - (len(libraries) - 1) / 2) * min(0.14, 0.6 / len(libraries))
            across = [ranks.index(int(count)) + shift for count in mine["replicas"]]
            one.plot(across, mine[column], color="#606060", ls=dash, lw=1.0, zorder=1)
            for x, row in zip(across, mine.to_dict("records"), strict=True):
                look = layout_look(str(row["layout"]))
                one.plot([x], [row[column]], marker=marker, color=look.colour, ls="none", zorder=2)
            error_bars(one, across, mine, column, interval, top)
            told = told_of_rows(across, mine, "replicas", column, interval)
            tell(one, [(x, y, f"{library}, {words}") for x, y, words in told])
        if published is not None:
            _draw_published(one, part, published, ranks, libraries)
        one.set_xticks(range(len(ranks)), [str(count) for count in ranks])
        one.set_xlim(-0.5, len(ranks) - 0.5)
        one.grid(visible=False, axis="x")
        one.set_xlabel("ranks")
    return figure, axes


def _draw_published(
    axes: Axes,
    rows: pd.DataFrame,
    published: pd.DataFrame,
    ranks: Sequence[int],
    libraries: Sequence[str],
) -> None:
    """Of the panel's mini-batches, in the line style of the library, where ours has its ranks."""
    points = published[published["batch_size"].isin(set(rows["batch_size"]))]
    points = points[points["ranks"].isin(ranks)]
    for library, mine in points.groupby("library"):
        number = libraries.index(str(library)) if library in libraries else len(libraries)
        across = [ranks.index(int(count)) for count in mine["ranks"]]
        look: dict[str, Any] = {"ls": _look(number)[1], "lw": 0.7, "marker": "x"}
        axes.plot(across, mine["epoch_s"], color="#606060", **look)


def _look(number: int) -> tuple[str, Any]:
    return _LOOKS[number % len(_LOOKS)]


def _handles(rows: pd.DataFrame, published: pd.DataFrame | None) -> list[Line2D]:
    """Legend entries: markers and line styles are libraries, colours layouts."""
    from matplotlib.lines import Line2D

    found = [
        Line2D([], [], color="#606060", marker=marker, ls=dash, label=library)
        for number, library in enumerate(_libraries(rows))
        for marker, dash in [_look(number)]
    ]
    found += [
        Line2D([], [], color=layout_look(name).colour, label=name) for name in layouts_in(rows)
    ]
    if published is not None:
        found.append(Line2D([], [], color="#606060", marker="x", ls="none", label="published"))
    return found
