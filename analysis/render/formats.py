"""Tables and pages as HTML, Markdown, LaTeX and CSV, on a terminal, and in folders that appear
complete."""

from __future__ import annotations

import base64
import functools
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import pandas as pd
from markupsafe import Markup, escape

from analysis.render.document import Document, Shown, Table
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.versioned_json import write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = files("analysis") / "templates"
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
    shown = Table("", "", table.frame, columns=table.paper).shown()
    lines = [shown.headings, *shown.texts]
    forms = (
        r"p{0.26\textwidth}" if width > _SENTENCE else "lr"[number]
        for width, number in zip(_widths(lines), shown.numbers, strict=True)
    )
    headings, *rows = (" & ".join(text.translate(_ESCAPES) for text in line) for line in lines)
    return Template((TEMPLATES / "table.tex").read_text(encoding="utf-8")).substitute(
        title=table.title.translate(_ESCAPES),
        name=table.name,
        columns="".join(forms),
        headings=headings,
        rows="\n".join(f"{row} \\\\" for row in rows),
        notes="\n".join(note.translate(_ESCAPES) for note in table.notes),
    )


def _widths(lines: list[list[str]]) -> list[int]:
    """The letters of the longest text of each column."""
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def print_frame(frame: pd.DataFrame) -> None:
    """Print the columns that are not empty, with numbers to the right."""
    shown = Table("", "", frame.rename(columns={"microbatches": "m"})).shown()
    lines = [shown.headings, *shown.texts]
    widths = _widths(lines)
    for line in lines:
        cells = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, shown.numbers, strict=True)
        )
        print("  ".join(cells).rstrip())


def document_to_html(document: Document) -> str:
    """The HTML text of a page, with its pictures; the template escapes all values."""
    return environment().get_template("report.html.j2").render(document=document)


def document_to_markdown(document: Document) -> str:
    """The Markdown text of a page; paths of pictures are relative to its folder."""
    text = environment().get_template("report.md.j2").render(document=document)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@functools.cache
def environment() -> Environment:
    """What renders the templates."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(TEMPLATES)),
        autoescape=lambda name: name is not None and ".html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {
        "data_uri": _data_uri,
        "with_code": _with_code,
        "plain": plain,
        "rows": markdown_rows,
        "relative": lambda path, folder: Path(os.path.relpath(path, folder)).as_posix(),
    }
    made.tests["block"] = lambda block, name: type(block).__name__ == name
    return made


def _with_code(text: str) -> Markup:
    """The text escaped, with what is between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _data_uri(png: Path) -> str:
    """A PNG file as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode("ascii")


def write_table(table: Table, folder: Path) -> None:
    """Write `<name>.csv` with all digits, `.md` and `.tex` into `folder`."""
    csv = table.frame.to_csv(index=False, lineterminator="\n")
    write_atomically(folder / f"{table.name}.csv", csv)
    write_atomically(folder / f"{table.name}.md", table_to_markdown(table))
    write_atomically(folder / f"{table.name}.tex", table_to_latex(table))


def write_page(document: Document, folder: Path) -> None:
    """Write report.md and report.html into `folder`."""
    write_atomically(folder / "report.md", document_to_markdown(document))
    write_atomically(folder / "report.html", document_to_html(document))


@contextmanager
def atomic_output_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder beside `out`; at the end its entries replace those of the same name.

    On failure it is removed and `out` stays as it was. Entries of other names in `out` stay. Raises
    InputError if `out` is a file or its parent is not writable, GnnhpcError if writing fails
    later, as on a full disk.
    """
    if out.exists() and not out.is_dir():
        raise InputError("--out", None, f"{out}, which is a file", "a folder")
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        found = f"{out.parent} ({error.strerror})"
        raise InputError("--out", None, found, "a folder you may write in") from None
    try:
        yield temporary
        out.mkdir(exist_ok=True)
        for number, entry in enumerate(sorted(temporary.iterdir())):
            target = out / entry.name
            if target.is_dir() and not target.is_symlink():
                target.rename(temporary / f".old-{number}")
            entry.replace(target)
    except OSError as error:
        raise GnnhpcError(f"{out}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
