"""Tables as LaTeX that a two-column paper can take: booktabs, notes below.

What all rows share is a note, so that columns hold what differs. Sentences are broken into lines,
and a table that is still wider than the page is scaled down to it (adjustbox).
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.render.document import Table, page_table

SENTENCE = 30
"""Letters beyond which a column is one of sentences."""
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


def table_to_latex(table: Table) -> str:
    """A table environment; needs \\usepackage{booktabs,adjustbox}."""
    shown = page_table(table.frame if table.paper is None else table.paper, "").shown()
    names = ["m" if name == "micro-batches" else name for name in shown.headings]
    texts = pd.DataFrame(shown.texts, columns=names, dtype=object)
    notes = list(table.notes)
    shared = [name for name in names if len(texts) > 1 and texts[name].nunique() == 1]
    if 0 < len(shared) < len(names):
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
    kind = "table" if fits else "table*"
    return _environment(texts, table.title, f"tab:{table.name}", form, kind, notes)


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


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)
