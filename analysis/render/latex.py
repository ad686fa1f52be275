"""Tables as LaTeX, with booktabs."""

from __future__ import annotations

from analysis.render.cell_text import format_rows
from analysis.render.interval_text import join_intervals
from analysis.render.named_table import NamedTable, is_number_column

_ESCAPES = str.maketrans(
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


def table_to_latex(table: NamedTable) -> str:
    """A booktabs table environment; needs \\usepackage{booktabs}."""
    frame = join_intervals(table.frame)
    columns = [str(name).translate(_ESCAPES) for name in frame.columns]
    align = "".join("r" if is_number_column(frame.iloc[:, i]) else "l" for i in range(len(columns)))
    body = [" & ".join(text.translate(_ESCAPES) for text in row) for row in format_rows(frame)]
    notes = [rf"\par\smallskip\footnotesize {note.translate(_ESCAPES)}" for note in table.notes]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{table.title.translate(_ESCAPES)}}}",
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
