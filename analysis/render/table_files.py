"""Writes a table to files: CSV with all digits, Markdown and LaTeX with four."""

from __future__ import annotations

from pathlib import Path

from analysis.render.latex import table_to_latex
from analysis.render.markdown import table_to_markdown
from analysis.render.named_table import NamedTable
from gnnhpc.core.versioned_json import write_atomically


def write_table(table: NamedTable, folder: Path) -> list[Path]:
    """Write `<name>.csv`, `.md` and `.tex` into `folder`; returns their paths."""
    texts = {
        ".csv": table.frame.to_csv(index=False, lineterminator="\n"),
        ".md": table_to_markdown(table),
        ".tex": table_to_latex(table),
    }
    paths = []
    for ending, text in texts.items():
        path = folder / f"{table.name}{ending}"
        write_atomically(path, text)
        paths.append(path)
    return paths
