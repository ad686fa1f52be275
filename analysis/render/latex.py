"""Tables as LaTeX that a two-column paper can take: booktabs, notes below.

What all rows share is a note, so that columns hold what differs. A table of many columns spans
both columns of the page, and one that is longer than a page is several.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.render.document import Table, page_table

MAX_COLUMNS, MAX_ROWS = 7, 40
_NARROW, _SENTENCE = 4, 40
"""The most columns of one column of a paper; letters from which on a cell is broken into lines."""
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
    notes, kept = [*table.notes], names
    if not chosen:
        shared = [name for name in names if len(texts) > 1 and texts[name].nunique() == 1]
        kept = [name for name in names if name not in shared] or names[:1]
        if shared:
            same = ", ".join(f"{name} {texts[name].iloc[0]}" for name in shared)
            notes.append(f"All rows: {same}.")
        if left := kept[MAX_COLUMNS:]:
            notes.append(f"Not shown: {', '.join(left)}; {table.name}.csv has all.")
        kept = kept[:MAX_COLUMNS]
    longest = {name: max([len(name), *texts[name].map(len)]) for name in kept}
    numbers = dict(zip(names, shown.numbers, strict=True))
    form = "".join(
        "p{150pt}" if longest[name] > _SENTENCE else "lr"[numbers[name]] for name in kept
    )
    kind = (
        "table*" if len(kept) > _NARROW or max(longest.values(), default=0) > _SENTENCE else "table"
    )
    starts = range(0, max(1, len(texts)), MAX_ROWS)
    parts = []
    for place, start in enumerate(starts):
        part = f" ({place + 1} of {len(starts)})" if len(starts) > 1 else ""
        rows = texts[kept].iloc[start : start + MAX_ROWS].map(_escape).rename(columns=_escape)
        text = rows.style.hide(axis="index").to_latex(
            column_format=form,
            hrules=True,
            caption=_escape(table.title + part),
            label=f"tab:{table.name}{part.strip(' ()').replace(' of ', '-')}",
            environment=kind,
            position="tp",
            position_float="centering",
        )
        parts.append(_with_notes(text, kind, notes if place == 0 else []))
    return "".join(parts)


def chosen_columns(table: Table, columns: Sequence[str]) -> list[str]:
    """Columns of `columns` that the table has, each with the bounds of its interval."""
    found = []
    for name in columns:
        stem = name.removesuffix("_s")
        found += [each for each in (name, f"{stem}_low", f"{stem}_high") if each in table.frame]
    return found


def _with_notes(text: str, kind: str, notes: Sequence[str]) -> str:
    """A float in small letters with notes below its table."""
    text = text.replace("\\centering", "\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}")
    if not notes:
        return text
    block = "\\par\\smallskip\n\\begin{minipage}{\\linewidth}\\scriptsize\\raggedright\n"
    end = f"\\end{{{kind}}}"
    below = "\n".join(map(_escape, notes))
    return text.replace(end, f"{block}{below}\n\\end{{minipage}}\n{end}")


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)
