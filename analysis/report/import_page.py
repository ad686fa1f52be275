"""The page of imported logs: warnings, tables, a figure of the speedups, known defects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from analysis.figures.style import COLUMN_IN, FULL_IN, layout_style, new_figure, save_figure, styled
from analysis.render.document import Block, Bullets, Document, Picture, Section, Text, page_table
from analysis.render.output_files import atomic_output_folder, write_page, write_table
from analysis.report.import_csv import ImportedLogs
from analysis.studies.study import published_studies

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_import_page(imported: ImportedLogs, out: Path) -> Path:
    """Write tables, figure, report.md and report.html into `out`; returns report.html.

    Files of other names in `out` stay. Raises InputError where it cannot be written.
    """
    with atomic_output_folder(out) as folder:
        for made in imported.tables:
            write_table(made, folder)
        write_page(import_document(imported, folder), folder)
    return out / "report.html"


def import_document(imported: ImportedLogs, folder: Path) -> Document:
    """The page's document; draws its figure into `folder`."""
    frame = imported.steps.frame
    verdict: list[Block] = [
        Text(line, "bad" if "above the bound" in line or "misprint" in line else "plain")
        for line in imported.warnings
    ]
    speed: list[Block] = [
        page_table(frame, imported.steps.title),
        *map(Text, imported.steps.notes),
    ]
    if frame["speedup"].notna().any():
        logs = tuple(map(str, frame["log"].drop_duplicates()))
        origin = {"Run": "imported logs", "Code": "unknown", "Cells": " ".join(logs)}
        png, pdf = save_figure(_speedup_figure(frame), folder / "figures", "speedups", origin)
        caption = "Speedup of each log, which is one run; ticks are the bound of balanced stages"
        speed.insert(0, Picture(caption, caption, png, pdf, wide=True))
    sections = [
        Section("verdict", "Verdict", tuple(verdict)),
        Section("steps", "Step times and speedups", tuple(speed)),
    ]
    if imported.published_statistics is not None:
        sections += [
            Section(
                "published",
                "Published and logged",
                (
                    Text(published_studies()["raffi"].citation),
                    page_table(
                        imported.published_statistics.frame,
                        "Published statistics and those of the log",
                    ),
                ),
            ),
            Section("defects", "Known defects", (Bullets(imported.published_statistics.notes),)),
        ]
    names = ", ".join(log.name for log in imported.logs[:8])
    more = f" and {len(imported.logs) - 8} more" if len(imported.logs) > 8 else ""
    return Document("Imported step logs", names + more, tuple(sections), folder)


def _speedup_figure(frame: pd.DataFrame) -> Figure:
    """A figure with a row a log and a panel a phase: speedup, and the bound as a tick."""
    known = frame[frame["speedup"].notna()]
    phases = list(dict.fromkeys(known["phase"]))
    names = list(dict.fromkeys(known["log"]))
    with styled():
        width = FULL_IN if len(phases) > 1 else COLUMN_IN
        figure = new_figure(width, 0.8 + 0.22 * len(names))
        panels = figure.subplots(1, len(phases), sharey=True, squeeze=False)[0]
        for axes, phase in zip(panels, phases, strict=True):
            for _, row in known[known["phase"] == phase].iterrows():
                place, style = names.index(row["log"]), layout_style(str(row["layout"]))
                axes.plot([row["speedup"]], [place], style.marker, color=style.colour)
                if pd.notna(row["bound"]):
                    axes.plot([row["bound"]], [place], "|", color="black", markersize=11)
            axes.set_title(phase, loc="left")
            axes.set_xlabel("speedup")
        panels[0].set_yticks(range(len(names)), names)
        panels[0].set_ylim(len(names) - 0.5, -0.5)
    return figure
