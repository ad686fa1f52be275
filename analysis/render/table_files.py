"""One table, three forms: CSV with all digits, Markdown and LaTeX with the digits that count."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gnnhpc.records.paths import write_atomically

DIGITS = 4
_MARKDOWN = str.maketrans({"|": "\\|", "\n": " "})
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "\n": " ",
    }
)


@dataclass(frozen=True)
class NamedTable:
    """A named table; `notes` are printed under it, such as the defects of published numbers."""

    name: str
    """File name without ending."""
    title: str
    frame: pd.DataFrame
    notes: tuple[str, ...] = ()


def format_value(value: Any) -> str:
    """A cell as text: four significant digits, nothing for what is missing."""
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, numbers.Real):
        return _format_number(float(value))
    return str(value)


def _format_number(number: float) -> str:
    if math.isnan(number):
        return ""
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    text = f"{number:.{DIGITS}g}"
    return f"{number:.0f}" if "e+" in text else text


def format_rows(frame: pd.DataFrame) -> list[list[str]]:
    """All rows as text; columns without any value are the caller's to drop."""
    return [
        [format_value(value) for value in row] for row in frame.itertuples(index=False, name=None)
    ]


def table_to_markdown(table: NamedTable) -> str:
    """A GitHub table with title and notes."""
    columns = [str(name).translate(_MARKDOWN) for name in table.frame.columns]
    align = ["---:" if _is_number(table.frame.iloc[:, i]) else "---" for i in range(len(columns))]
    lines = [f"**{table.title}**", "", _row(columns), _row(align)]
    lines += [_row([text.translate(_MARKDOWN) for text in row]) for row in format_rows(table.frame)]
    lines += [line for note in table.notes for line in ("", note)]
    return "\n".join(lines) + "\n"


def _row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _is_number(column: pd.Series[Any]) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def table_to_latex(table: NamedTable) -> str:
    """A booktabs table environment; needs \\usepackage{booktabs}."""
    columns = [str(name).translate(_LATEX) for name in table.frame.columns]
    align = "".join("r" if _is_number(table.frame.iloc[:, i]) else "l" for i in range(len(columns)))
    body = [" & ".join(text.translate(_LATEX) for text in row) for row in format_rows(table.frame)]
    notes = [rf"\par\smallskip\footnotesize {note.translate(_LATEX)}" for note in table.notes]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{table.title.translate(_LATEX)}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{{align}}}",
            r"\toprule",
            " & ".join(columns) + r" \\",
            r"\midrule",
            *(line + r" \\" for line in body),
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            r"\end{table}",
            "",
        ]
    )


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
