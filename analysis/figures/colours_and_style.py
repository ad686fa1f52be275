"""The style of all figures: one colour, marker and hatch for each layout everywhere, and saving.

Colours of the four main layouts are Okabe and Ito's (readable for colour-blind readers), of
different lightness so that they differ in grey; each layout also has its own marker and hatch.
matplotlib is imported when a figure is made, and a user's settings of it change nothing.
"""

from __future__ import annotations

import colorsys
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from gnnhpc.core.layout import Layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN_IN, FULL_IN = 3.3, 6.9
"""Width of one column and of both columns of a two-column paper, inches."""
DPI = 220
_WIDTH: ContextVar[float | None] = ContextVar("width", default=None)


@dataclass(frozen=True)
class LayoutStyle:
    colour: str
    marker: str
    hatch: str
    dash: Any
    """A matplotlib line style."""

    @property
    def line(self) -> dict[str, Any]:
        """The style as arguments of a line with markers."""
        return {"color": self.colour, "marker": self.marker, "ls": self.dash}


_FIXED = {
    "seq": LayoutStyle("#1f1f1f", "o", "", "-"),
    "pp2": LayoutStyle("#005f9e", "s", "//", (0, (5, 1.5))),
    "pp4": LayoutStyle("#d55e00", "^", "xx", (0, (3, 1.2, 1, 1.2))),
    "dp2-pp2": LayoutStyle("#4fbf97", "D", "..", (0, (1.5, 1))),
}
_MARKERS = "vPX<>pdh*"
_HATCHES = ("\\\\", "++", "oo", "--", "||", "**", "OO")
_DASHES = ((0.0, (7.0, 1.5)), (0.0, (4.0, 1.0, 1.0, 1.0, 1.0, 1.0)), (0.0, (2.5, 2.5)))
GREY = "#606060"
"""Colour of everything that is no layout: published points, references, ideals."""
SERIES_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#7b3294", "marker": "o", "ls": "-"},
    {"color": "#c2a5cf", "marker": "D", "ls": (0, (5, 1.2, 1, 1.2))},
    {"color": "#4d4d4d", "marker": "s", "ls": "--"},
    {"color": "#b2abd2", "marker": "^", "ls": ":"},
)
"""Styles of series that are not layouts, such as the replicas of a data-parallel run."""
_SETTINGS = Path(__file__).parents[1] / "templates" / "figures.mplstyle"


def layout_style(layout: str) -> LayoutStyle:
    """Fixed for the four main layouts, computed from R and S for others."""
    if layout in _FIXED:
        return _FIXED[layout]
    parsed = Layout.parse(layout)
    # Cantor's pairing function: a different number for each (R, S), and so another hue.
    total = parsed.replicas + parsed.stages
    number = total * (total + 1) // 2 + parsed.stages
    hue = (0.83 + number * 0.61803398875) % 1.0
    rgb = colorsys.hls_to_rgb(hue, (0.28, 0.39, 0.5)[number % 3], 0.65)
    return LayoutStyle(
        "#" + "".join(f"{round(share * 255):02x}" for share in rgb),
        _MARKERS[number % len(_MARKERS)],
        _HATCHES[number % len(_HATCHES)],
        _DASHES[number % len(_DASHES)],
    )


def layout_order(layout: str) -> tuple[int, int]:
    """Sort key: fewer ranks first, then fewer replicas."""
    parsed = Layout.parse(layout)
    return parsed.world_size, parsed.replicas


def layout_styles(layouts: Iterable[str], **other: Any) -> dict[str, dict[str, Any]]:
    """The line of each layout, from the fewest ranks to the most, with these arguments."""
    names = sorted(set(map(str, layouts)), key=layout_order)
    return {name: {**layout_style(name).line, **other} for name in names}


@contextmanager
def styled() -> Iterator[None]:
    """Draw with matplotlib's defaults and our settings within the block."""
    # A notebook's MPLBACKEND may name a backend that cannot be imported here.
    with patch.dict(os.environ, MPLBACKEND="agg"):
        import matplotlib as mpl

    with mpl.rc_context():
        mpl.rc_file(_SETTINGS)
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
    return _WIDTH.get() or usual_in


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure that pyplot does not manage; call within `styled`."""
    from matplotlib.figure import Figure

    size = (figure_width(width_in), height_in)
    return Figure(figsize=size, dpi=DPI, layout="constrained")


def save_figure(
    figure: Figure, folder: Path, name: str, origin: Mapping[str, str]
) -> tuple[Path, Path]:
    """Write `name`.png and `name`.pdf, without dates: equal figures give equal bytes.

    `origin` says where the figure comes from, as text chunks of the PNG, and as subject and
    keywords (its `Cells`) of the PDF.
    """
    folder.mkdir(parents=True, exist_ok=True)
    png, pdf = (folder / f"{name}.{ending}" for ending in ("png", "pdf"))
    subject = "; ".join(f"{key.lower()} {origin[key]}" for key in origin if key != "Cells")
    keywords = {"Subject": subject, "Keywords": origin["Cells"]}
    with styled():
        engine = figure.get_layout_engine()
        if engine is not None:
            engine.execute(figure)
            # With a layout engine set, savefig would draw each file twice.
            figure.set_layout_engine(None)
        figure.savefig(png, dpi=DPI, metadata={"Software": None, "Title": name, **origin})
        figure.savefig(pdf, dpi=DPI, metadata={"CreationDate": None, "Title": name, **keywords})
    return png, pdf
