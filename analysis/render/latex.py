"""Tables as LaTeX that a two-column paper can take: booktabs, seven columns, notes below.

What all rows share and whole sentences are notes, so that columns hold words and numbers only. A
table that is wider than a column spans both, and one that is longer than a page is several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.render.cell_text import format_rows
from analysis.render.interval_text import join_intervals
from analysis.render.named_table import NamedTable, is_number_column

MAX_COLUMNS = 7
MOST_LETTERS = 40
"""Of a text in a column; a longer one is a note."""
MAX_ROWS, MAX_ROWS_WITH_NOTES = 40, 14
"""Of one float, so that it fits a page with its notes."""
COLUMN_PT, PAGE_PT = 235.0, 490.0
"""Width of one column and of both of a two-column paper, rather less than there is."""
_LETTER_PT, _GAP_PT = 4.3, 6.0
"""A letter at footnote size, and the space between columns."""
_HEADINGS = {"microbatches": "m", "samples_per_s": "samples/s"}

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
        "·": r"$\cdot$",
        "×": r"$\times$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "\n": " ",
    }
)


@dataclass(frozen=True)
class _Column:
    name: str
    texts: list[str]
    number: bool

    @property
    def heading(self) -> str:
        name = _HEADINGS.get(self.name, self.name)
        unit = " (s)" if name.endswith("_s") else ""
        return (name.removesuffix("_s") if unit else name).replace("_", " ") + unit

    @property
    def width_pt(self) -> float:
        return _LETTER_PT * max(map(len, [self.heading, *self.texts])) + _GAP_PT


def table_to_latex(table: NamedTable) -> str:
    """One or more booktabs table environments; needs \\usepackage{booktabs}."""
    frame = join_intervals(table.frame if table.paper is None else table.paper)
    texts = [list(column) for column in zip(*format_rows(frame), strict=True)]
    columns = [
        _Column(str(name), column, is_number_column(frame[name]))
        for name, column in zip(frame.columns, texts, strict=False)
        if any(column)
    ]
    sentences = [c for c in columns if not c.number and max(map(len, c.texts)) > MOST_LETTERS]
    words = [column for column in columns if column not in sentences]
    shared = [c for c in words if len(c.texts) > 1 and len(set(c.texts)) == 1]
    shown, left_out = _those_with_room([c for c in words if c not in shared] or words[:1])
    notes = [*table.notes]
    if shared:
        notes.append("All rows: " + ", ".join(f"{c.heading} {c.texts[0]}" for c in shared) + ".")
    if left_out:
        named = ", ".join(column.heading for column in left_out)
        notes.append(f"Not shown: {named}; {table.name}.csv has all.")
    most = MAX_ROWS_WITH_NOTES if sentences else MAX_ROWS
    starts = range(0, max(1, len(frame)), most)
    return "\n".join(
        _part(table, shown, sentences, notes, range(start, min(start + most, len(frame))), starts)
        for start in starts
    )


def _those_with_room(columns: list[_Column]) -> tuple[list[_Column], list[_Column]]:
    """The first columns, as many as a page is wide and a reader can take in; and the others."""
    room = MAX_COLUMNS
    while room > 1 and sum(column.width_pt for column in columns[:room]) > PAGE_PT:
        room -= 1
    return columns[:room], columns[room:]


def _part(
    table: NamedTable,
    columns: Sequence[_Column],
    sentences: Sequence[_Column],
    notes: Sequence[str],
    rows: range,
    starts: range,
) -> str:
    """One float with some of the rows, and the notes that belong to these."""
    place = starts.index(rows.start) if rows.start in starts else 0
    numbered: dict[str, int] = {}
    body = [" & ".join(_cells(columns, sentences, row, numbered)) + r" \\" for row in rows]
    wide = sum(column.width_pt for column in columns) > COLUMN_PT
    kind = "table*" if wide else "table"
    title = table.title + (f" ({place + 1} of {len(starts)})" if len(starts) > 1 else "")
    below = [_escape(note) for note in (notes if place == 0 else ())]
    below += [rf"\textsuperscript{{{number}}}~{_escape(text)}" for text, number in numbered.items()]
    return "\n".join(
        [
            rf"\begin{{{kind}}}[tp]",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{_escape(title)}}}",
            rf"\label{{tab:{table.name}{f'-{place + 1}' if place else ''}}}",
            rf"\begin{{tabular}}{{{''.join('r' if c.number else 'l' for c in columns)}}}",
            r"\toprule",
            " & ".join(_escape(column.heading) for column in columns) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *_notes_below(below),
            rf"\end{{{kind}}}",
            "",
        ]
    )


def _cells(
    columns: Sequence[_Column], sentences: Sequence[_Column], row: int, numbered: dict[str, int]
) -> Iterator[str]:
    """A row's texts, the first with the numbers of the row's notes."""
    told = [column.texts[row] for column in sentences if column.texts[row]]
    marks = ",".join(str(numbered.setdefault(text, len(numbered) + 1)) for text in told)
    for place, column in enumerate(columns):
        text = _escape(column.texts[row])
        yield text + (rf"\textsuperscript{{{marks}}}" if marks and not place else "")


def _notes_below(notes: Sequence[str]) -> list[str]:
    if not notes:
        return []
    return [
        r"\par\smallskip",
        r"\begin{minipage}{\linewidth}\scriptsize\raggedright",
        "\n".join(notes),
        r"\end{minipage}",
    ]


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)
