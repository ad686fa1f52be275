"""The style of all figures: a colour, marker and hatch for each layout, sizes, saving.

Colours of the four main layouts are Okabe and Ito's (readable for colour-blind readers), of
different lightness so that they differ in grey; each layout also has its own marker and hatch.
matplotlib is imported when a figure is made, not before.
"""

from __future__ import annotations

import colorsys
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from analysis.figures.origin import Origin
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Format = Literal["png", "pdf"]
COLUMN_IN = 3.3
"""Width of one column of a two-column paper, inches."""
FULL_IN = 6.9
"""Width of both columns, inches."""
NARROW_IN = 5.0
"""Below this width what stands side by side over both columns does not fit."""
DPI = 220
FORMATS: tuple[Format, ...] = ("png", "pdf")
_WIDTH: ContextVar[float | None] = ContextVar("width", default=None)


@dataclass(frozen=True)
class LayoutLook:
    """Colour, marker, hatch and line style of one layout."""

    colour: str
    marker: str
    hatch: str
    dash: str | tuple[float, tuple[float, ...]]
    """A matplotlib line style."""


_FIXED = {
    "seq": LayoutLook("#1f1f1f", "o", "", "-"),
    "pp2": LayoutLook("#005f9e", "s", "//", (0, (5, 1.5))),
    "pp4": LayoutLook("#d55e00", "^", "xx", (0, (3, 1.2, 1, 1.2))),
    "dp2-pp2": LayoutLook("#4fbf97", "D", "..", (0, (1.5, 1))),
}
_MARKERS = "vPX<>pdh*"
_HATCHES = ("\\\\", "++", "oo", "--", "||", "**", "OO")
_DASHES = ((0.0, (7.0, 1.5)), (0.0, (4.0, 1.0, 1.0, 1.0, 1.0, 1.0)), (0.0, (2.5, 2.5)))

ACTION_COLOURS = {
    "forward": "#56b4e9",
    "backward": "#0a5a8a",
    "weights": "#a9d6b8",
    "allreduce": "#d55e00",
    "optimizer": "#a8a100",
    "wait": "#e6e6e6",
}
"""Colours of actions in timelines."""

SERIES_COLOURS = ("#7b3294", "#c2a5cf", "#4d4d4d", "#b2abd2")
"""For series that are not layouts, such as the replicas of a data-parallel run."""

MODE_MARKERS = {"contiguous": "o", "clustered": "s", "halo": "^"}
"""Chunk modes differ by marker and line style, because colours are layouts."""
MODE_DASHES = {"contiguous": ":", "clustered": "--", "halo": "-"}
REBUILT = ", rebuilt"
"""After the mode of chunks whose edges are cut out of the graph in each layer."""
_REBUILT_MARKERS = {"contiguous": "X", "clustered": "P"}
_REBUILT_DASH = (0.0, (6.0, 1.5, 1.0, 1.5))

_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    # The default position, fixed: finding it out costs the size of every label at each draw.
    "axes.titley": 1.0,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "legend.handlelength": 2.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    # The Unicode minus would embed a second font in every PDF.
    "axes.unicode_minus": False,
    "grid.color": "#e0e0e0",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 5,
    "hatch.linewidth": 0.5,
    "hatch.color": "#ffffff",
    "errorbar.capsize": 2,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,
}


def layout_look(layout: str) -> LayoutLook:
    """The look of a layout: fixed for the four main ones, computed from R and S for others.

    Multiples of the golden angle give different layouts different hues.
    """
    if layout in _FIXED:
        return _FIXED[layout]
    try:
        parsed = Layout.parse(layout)
    except InputError:
        return LayoutLook("#808080", "x", "", ":")
    if str(parsed) in _FIXED:
        return _FIXED[str(parsed)]
    # Cantor's pairing function: a different number for each (R, S).
    total = parsed.replicas + parsed.stages
    number = total * (total + 1) // 2 + parsed.stages
    hue = (0.83 + number * 0.61803398875) % 1.0
    lightness = (0.28, 0.39, 0.5)[number % 3]
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, 0.65)
    colour = f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
    return LayoutLook(
        colour,
        _MARKERS[number % len(_MARKERS)],
        _HATCHES[number % len(_HATCHES)],
        _DASHES[number % len(_DASHES)],
    )


def mode_look(mode: str) -> tuple[str, str | tuple[float, tuple[float, ...]]]:
    """Marker and line style of a chunk mode, with `REBUILT` after it or without."""
    name = mode.removesuffix(REBUILT)
    if name != mode:
        return _REBUILT_MARKERS[name], _REBUILT_DASH
    return MODE_MARKERS[name], MODE_DASHES[name]


def layout_order(layout: str) -> tuple[int, int, str]:
    """Sort key: fewer ranks first, then fewer replicas."""
    try:
        parsed = Layout.parse(layout)
    except InputError:
        return (1 << 30, 0, layout)
    return (parsed.world_size, parsed.replicas, layout)


@contextmanager
def styled() -> Iterator[None]:
    """Apply matplotlib's defaults and these settings within the block.

    A user's matplotlibrc changes nothing.
    """
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


@contextmanager
def at_width(width_in: float | None) -> Iterator[None]:
    """Draw all figures within the block this wide, inches; None leaves each its own width."""
    token = _WIDTH.set(width_in)
    try:
        yield
    finally:
        _WIDTH.reset(token)


def figure_width(usual_in: float) -> float:
    """The width that a figure gets: its usual one, unless another was asked for."""
    asked = _WIDTH.get()
    return usual_in if asked is None else asked


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure that pyplot does not manage; call within `styled`."""
    from matplotlib.figure import Figure

    size = (figure_width(width_in), height_in)
    return Figure(figsize=size, dpi=DPI, layout="constrained")


def load_backends() -> None:
    """Import matplotlib's backends before a fork, so that each process need not."""
    for name in ("agg", "pdf"):
        importlib.import_module(f"matplotlib.backends.backend_{name}")


def save_figure(
    figure: Figure,
    folder: Path,
    name: str,
    origin: Origin | None = None,
    formats: Sequence[Format] = FORMATS,
) -> list[Path]:
    """Write `name`.png and `name`.pdf, without dates: equal figures give equal bytes.

    Each carries its `origin` as metadata. Returns the files in the order of `formats`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        engine = figure.get_layout_engine()
        if engine is not None:
            engine.execute(figure)
            # With a layout engine set, savefig would draw each file twice.
            figure.set_layout_engine(None)
        for ending in formats:
            _write(figure, folder / f"{name}.{ending}", _metadata(name, ending, origin))
    return [folder / f"{name}.{ending}" for ending in formats]


def _metadata(name: str, ending: Format, origin: Origin | None) -> dict[str, str | None]:
    """Without date and program."""
    if ending == "png":
        return {"Software": None} | (origin.png(name) if origin else {})
    return {"CreationDate": None} | (origin.pdf(name) if origin else {})


def _write(figure: Figure, path: Path, metadata: dict[str, str | None]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        figure.savefig(temporary, dpi=DPI, format=path.suffix[1:], metadata=metadata)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
