"""A table as Markdown, as LaTeX for a two-column paper, and on a terminal."""

from __future__ import annotations

import re

import pandas as pd

from analysis.render.document import Shown, Table, page_table

_SENTENCE = 30
"""Letters beyond which a column of a LaTeX table is one of sentences, which has lines."""
_ESCAPES = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "\n": " ",
        "·": r"$\cdot$",
        "×": r"$\times$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
    }
)
# Without \sloppy, words of a narrow column stick out of it.
_LATEX = r"""\begin{table*}[tp]
\centering\footnotesize\sloppy\setlength{\tabcolsep}{3pt}
\caption{TITLE}
\label{tab:NAME}
\begin{adjustbox}{max width=\linewidth}
\begin{tabular}{COLUMNS}
\toprule
HEADINGS \\
\midrule
ROWS
\bottomrule
\end{tabular}
\end{adjustbox}
\par\smallskip
\begin{minipage}{\linewidth}\scriptsize\raggedright
NOTES
\end{minipage}
\end{table*}
"""


def table_to_markdown(table: Table) -> str:
    """All columns of a table, its title above and its notes below."""
    notes = "".join(f"\n{note}\n" for note in table.notes)
    return f"**{table.title}**\n\n{markdown_rows(table.whole())}\n{notes}"


def markdown_rows(shown: Shown) -> str:
    """A Markdown table."""
    lines = [shown.headings, *shown.texts]
    lines.insert(1, ["---:" if number else "---" for number in shown.numbers])
    return "\n".join("| " + " | ".join(map(plain, line)) + " |" for line in lines)


def plain(text: str) -> str:
    """The text on one line, with the special characters of Markdown and HTML escaped."""
    return re.sub(r"([\\*\[\]<>|])", r"\\\1", " ".join(text.split()))


def table_to_latex(table: Table) -> str:
    """A float as wide as the page; needs \\usepackage{booktabs,adjustbox}.

    Sentences are broken into lines, and a table that is still too wide is scaled to the page.
    """
    shown = page_table(table.frame, "", table.paper).shown()
    lines = [shown.headings, *shown.texts]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    forms = (
        r"p{0.26\textwidth}" if width > _SENTENCE else "lr"[number]
        for width, number in zip(widths, shown.numbers, strict=True)
    )
    headings, *rows = (" & ".join(text.translate(_ESCAPES) for text in line) for line in lines)
    parts = {
        "TITLE": table.title.translate(_ESCAPES),
        "NAME": table.name,
        "COLUMNS": "".join(forms),
        "HEADINGS": headings,
        "ROWS": "\n".join(f"{row} \\\\" for row in rows),
        "NOTES": "\n".join(note.translate(_ESCAPES) for note in table.notes),
    }
    return re.sub("|".join(parts), lambda found: parts[found[0]], _LATEX)


def print_frame(frame: pd.DataFrame) -> None:
    """Print the columns that are not empty, with numbers to the right."""
    shown = page_table(frame.rename(columns={"microbatches": "m"}), "").shown()
    lines = [shown.headings, *shown.texts]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, shown.numbers, strict=True)
        )
        print("  ".join(cells).rstrip())
