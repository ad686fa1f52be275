"""Tables as LaTeX that a two-column paper can take: booktabs, notes below.

What all rows share is a note, so that columns hold what differs. A table that is wider than a
column of the page spans both; then its longest texts are broken into lines, and the last columns
are left out, until it fits. A table that is longer than a page is several.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd

from analysis.render.document import Table, page_table

MAX_LINES = 40
"""The most lines of a page, besides notes."""
COLUMN_PT, PAGE_PT = 240.0, 504.0
"""Width of a column of a two-column paper, and of both, points."""
_LETTER_PT, _GAP_PT = 4.4, 6.0
"""Width of a letter of \\footnotesize, and the space between columns."""
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
    chosen = chosen_columns(table, columns)
    frame = table.frame if chosen or table.paper is None else table.paper
    if chosen:
        if "phase" in frame and "phase" not in chosen:
            # Rows of two phases look the same without it.
            frame = frame[frame["phase"] == "train"]
        frame = frame[chosen].reset_index(drop=True)
    shown = page_table(frame, "").shown()
    names = ["m" if name == "micro-batches" else name for name in shown.headings]
    texts = pd.DataFrame(shown.texts, columns=names, dtype=object)
    numbers = {name for name, is_one in zip(names, shown.numbers, strict=True) if is_one}
    whole = {name: _points([name, *texts[name]]) for name in names}
    words = {name: _points(" ".join([name, *texts[name]]).split()) for name in names}
    least = {name: (whole if name in numbers else words)[name] for name in names}
    notes, kept = [*table.notes], names
    if not chosen:
        shared = [name for name in names if len(texts) > 1 and texts[name].nunique() == 1]
        kept = [name for name in names if name not in shared] or names[:1]
        if shared:
            same = ", ".join(f"{name} {texts[name].iloc[0]}" for name in shared)
            notes.append(f"All rows: {same}.")
        left: list[str] = []
        while len(kept) > 1 and _total(least[name] for name in kept) > PAGE_PT:
            left.insert(0, kept.pop())
        if left:
            notes.append(f"Not shown: {', '.join(left)}; {table.name}.csv has all.")
    widths = _break_lines({name: whole[name] for name in kept}, least)
    kind = "table" if _total(whole[name] for name in kept) <= COLUMN_PT else "table*"
    form = "".join(
        f"p{{{widths[name]:.0f}pt}}" if widths[name] < whole[name] else "lr"[name in numbers]
        for name in kept
    )
    parts = list(_pages(texts[kept], widths))
    made = []
    for place, rows in enumerate(parts):
        part = f" ({place + 1} of {len(parts)})" if len(parts) > 1 else ""
        text = (
            rows.map(_escape)
            .rename(columns=_escape)
            .style.hide(axis="index")
            .to_latex(
                column_format=form,
                hrules=True,
                caption=_escape(table.title + part),
                label=f"tab:{table.name}{part.strip(' ()').replace(' of ', '-')}",
                environment=kind,
                position="tp",
                position_float="centering",
            )
        )
        made.append(_with_notes(text, kind, notes if place == 0 else []))
    return "".join(made)


def _points(texts: Iterable[str]) -> float:
    """Width of the longest one."""
    return _LETTER_PT * max(map(len, texts), default=0)


def _total(widths: Iterable[float]) -> float:
    """Width of a table of these columns, with the space between them."""
    return sum(width + _GAP_PT for width in widths)


def _break_lines(widths: dict[str, float], least: Mapping[str, float]) -> dict[str, float]:
    """Widths that fit both columns of a page: the widest text is the first to be broken."""
    while _total(widths.values()) > PAGE_PT:
        wide = [name for name in widths if widths[name] > least[name]]
        if not wide:
            break
        widest = max(wide, key=widths.__getitem__)
        widths[widest] = max(least[widest], widths[widest] - _LETTER_PT)
    return widths


def _pages(texts: pd.DataFrame, widths: dict[str, float]) -> Iterator[pd.DataFrame]:
    """The rows, as many at a time as a page has lines for."""
    start, lines = 0, 0
    for place, row in enumerate(texts.to_dict("records")):
        needed = max(math.ceil(_LETTER_PT * len(str(row[n])) / w) for n, w in widths.items() if w)
        if lines and lines + needed > MAX_LINES:
            yield texts.iloc[start:place]
            start, lines = place, 0
        lines += needed
    yield texts.iloc[start:]


def chosen_columns(table: Table, columns: Sequence[str]) -> list[str]:
    """Columns of `columns` that the table has, each with the bounds of its interval."""
    found = []
    for name in columns:
        stem = name.removesuffix("_s")
        found += [each for each in (name, f"{stem}_low", f"{stem}_high") if each in table.frame]
    return found


def _with_notes(text: str, kind: str, notes: Sequence[str]) -> str:
    """A float in small letters with notes below its table."""
    # Without \\sloppy, words of a narrow column stick out of it.
    small = "\\centering\\footnotesize\\sloppy\\setlength{\\tabcolsep}{3pt}"
    text = text.replace("\\centering", small)
    if not notes:
        return text
    block = "\\par\\smallskip\n\\begin{minipage}{\\linewidth}\\scriptsize\\raggedright\n"
    end = f"\\end{{{kind}}}"
    below = "\n".join(map(_escape, notes))
    return text.replace(end, f"{block}{below}\n\\end{{minipage}}\n{end}")


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)
