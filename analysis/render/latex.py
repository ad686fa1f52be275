"""Tables as LaTeX that a two-column paper can take: booktabs, notes below.

What all rows share is a note, so that columns hold what differs. Sentences are broken into lines, a
table that is still wider than the page is scaled down to it (adjustbox), and one that is longer
than a page is several.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.render.document import Table, page_table

MAX_LINES = 40
"""The most lines of a page, besides notes."""
SENTENCE = 30
"""Letters beyond which a column is one of sentences, whose lines have as many."""
_SENTENCE_COLUMN = r"p{0.26\textwidth}"
_COLUMN_LETTERS = 54
"""Letters in \\footnotesize that one column of the page has room for, with a gap a column."""
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
    """One or more table environments; needs \\usepackage{booktabs,adjustbox}.

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
    notes = list(table.notes)
    shared = [name for name in names if len(texts) > 1 and texts[name].nunique() == 1]
    if not chosen and 0 < len(shared) < len(names):
        same = ", ".join(f"{name} {texts[name].iloc[0]}" for name in shared)
        notes.append(f"All rows: {same}.")
        texts = texts.drop(columns=shared)
    letters = {name: max(map(len, [name, *texts[name]])) for name in map(str, texts)}
    numbers = dict(zip(names, shown.numbers, strict=True))
    form = "".join(
        _SENTENCE_COLUMN if wide > SENTENCE else "lr"[numbers[name]]
        for name, wide in letters.items()
    )
    fits = sum(letters.values()) + 1.4 * len(letters) <= _COLUMN_LETTERS
    parts = list(_pages(texts))
    return "".join(
        _environment(
            rows,
            f"{table.title} ({number} of {len(parts)})" if len(parts) > 1 else table.title,
            f"tab:{table.name}{f'-{number}' if len(parts) > 1 else ''}",
            form,
            "table" if fits else "table*",
            notes if number == 1 else (),
        )
        for number, rows in enumerate(parts, 1)
    )


def _pages(texts: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The rows, as many at a time as a page has lines for."""
    start, lines = 0, 0
    for place, row in enumerate(texts.itertuples(index=False)):
        needed = math.ceil(max(map(len, row)) / SENTENCE)
        if lines and lines + needed > MAX_LINES:
            yield texts.iloc[start:place]
            start, lines = place, 0
        lines += needed
    yield texts.iloc[start:]


def _environment(
    rows: pd.DataFrame, title: str, label: str, form: str, kind: str, notes: Sequence[str]
) -> str:
    """A float in small letters with notes below its table."""
    text = (
        rows.map(_escape)
        .rename(columns=_escape)
        .style.hide(axis="index")
        .to_latex(
            column_format=form,
            hrules=True,
            caption=_escape(title),
            label=label,
            environment=kind,
            position="tp",
            position_float="centering",
        )
    )
    below = "\n".join(map(_escape, notes))
    minipage = "\\begin{minipage}{\\linewidth}\\scriptsize\\raggedright"
    changes = {
        # Without \\sloppy, words of a narrow column stick out of it.
        "\\centering\n": "\\centering\\footnotesize\\sloppy\\setlength{\\tabcolsep}{3pt}\n",
        "\\begin{tabular}": "\\begin{adjustbox}{max width=\\linewidth}\n\\begin{tabular}",
        "\\end{tabular}\n": "\\end{tabular}\n\\end{adjustbox}\n"
        + (f"\\par\\smallskip\n{minipage}\n{below}\n\\end{{minipage}}\n" if notes else ""),
    }
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def chosen_columns(table: Table, columns: Sequence[str]) -> list[str]:
    """Columns of `columns` that the table has, each with the bounds of its interval."""
    found = []
    for name in columns:
        stem = name.removesuffix("_s")
        found += [each for each in (name, f"{stem}_low", f"{stem}_high") if each in table.frame]
    return found


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)
