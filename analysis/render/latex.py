"""Tables as LaTeX that a two-column paper can take: booktabs, notes below.

What all rows share is a note, so that columns hold what differs. A table that is wider than a
column spans both, and one that is longer than a page is several.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.render.document import Table, page_table

MAX_COLUMNS, MAX_ROWS = 7, 40
COLUMN_PT, PAGE_PT = 235.0, 490.0
"""Width of one column and of both of a two-column paper, rather less than there is."""
_LETTER_PT, _GAP_PT, _SENTENCE_PT = 4.3, 6.0, 150.0
"""A letter at footnote size, the space between columns, and the width of a column of sentences."""
_SENTENCE_LETTERS = 40
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


def table_to_latex(table: Table, columns: Sequence[str] = ()) -> str:
    """One or more booktabs table environments; needs \\usepackage{booktabs}.

    `columns` are those of `table.frame` to show, where it has any of them.
    """
    frame = table.frame if table.paper is None else table.paper
    chosen = chosen_columns(table, columns)
    if chosen:
        frame = table.frame
        if "phase" in frame and "phase" not in chosen:
            # Rows of two phases look the same without it.
            frame = frame[frame["phase"] == "train"]
        frame = frame[chosen].reset_index(drop=True)
    shown = page_table(frame, "").shown()
    names = ["m" if name == "micro-batches" else name for name in shown.headings]
    texts = pd.DataFrame(shown.texts, columns=names, dtype=object)
    shared = {
        name: texts[name].iloc[0]
        for name in names
        if not chosen and len(texts) > 1 and texts[name].nunique() == 1
    }
    kept = [name for name in names if name not in shared] or names[:1]
    widths = [_width_pt(name, texts[name]) for name in kept]
    room = len(kept) if chosen else MAX_COLUMNS
    while not chosen and room > 1 and sum(widths[:room]) > PAGE_PT:
        room -= 1
    left, kept, widths = kept[room:], kept[:room], widths[:room]
    notes = [*table.notes]
    if shared:
        notes.append("All rows: " + ", ".join(f"{n} {text}" for n, text in shared.items()) + ".")
    if left:
        notes.append(f"Not shown: {', '.join(left)}; {table.name}.csv has all.")
    numbers = dict(zip(names, shown.numbers, strict=True))
    form = "".join(
        f"p{{{_SENTENCE_PT:g}pt}}" if width >= _SENTENCE_PT else "r" if numbers[name] else "l"
        for name, width in zip(kept, widths, strict=True)
    )
    starts = list(range(0, max(1, len(texts)), MAX_ROWS))
    return "".join(
        _float(
            table,
            texts[kept].iloc[start : start + MAX_ROWS],
            form,
            notes if start == 0 else [],
            f" ({place + 1} of {len(starts)})" if len(starts) > 1 else "",
            wide=sum(widths) > COLUMN_PT,
        )
        for place, start in enumerate(starts)
    )


def chosen_columns(table: Table, columns: Sequence[str]) -> list[str]:
    """Columns of `columns` that the table has, each with the bounds of its interval."""
    found = []
    for name in columns:
        stem = name.removesuffix("_s")
        found += [each for each in (name, f"{stem}_low", f"{stem}_high") if each in table.frame]
    return found


def _width_pt(heading: str, texts: pd.Series[str]) -> float:
    letters = max(map(len, [heading, *texts]))
    return _SENTENCE_PT if letters > _SENTENCE_LETTERS else _LETTER_PT * letters + _GAP_PT


def _float(
    table: Table, texts: pd.DataFrame, form: str, notes: Sequence[str], part: str, *, wide: bool
) -> str:
    """One float with some of the rows."""
    kind = "table*" if wide else "table"
    escaped = texts.map(_escape).rename(columns=_escape)
    label = f"tab:{table.name}{part.strip(' ()').replace(' of ', '-')}"
    text = escaped.style.hide(axis="index").to_latex(
        column_format=form,
        hrules=True,
        caption=_escape(table.title + part),
        label=label,
        environment=kind,
        position="tp",
        position_float="centering",
    )
    text = text.replace("\\centering", "\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}")
    below = "\n".join(map(_escape, notes))
    if below:
        end = f"\\end{{{kind}}}"
        block = "\\par\\smallskip\n\\begin{minipage}{\\linewidth}\\scriptsize\\raggedright\n"
        text = text.replace(end, f"{block}{below}\n\\end{{minipage}}\n{end}")
    return text


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)
