"""Pages as one HTML file with styles, script and pictures in it, and as Markdown."""

from __future__ import annotations

import base64
import functools
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from analysis.render.document import Document, Shown, Table

if TYPE_CHECKING:
    from jinja2 import Environment


def document_to_html(document: Document) -> str:
    """The HTML text of a page; the template escapes all values."""
    return _environment().get_template("report.html.j2").render(document=document)


def document_to_markdown(document: Document) -> str:
    """The Markdown text of a page; paths of pictures are relative to its folder."""
    text = _environment().get_template("report.md.j2").render(document=document)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def table_to_markdown(table: Table) -> str:
    """All columns of a table, its title above and its notes below."""
    notes = "".join(f"\n{note}\n" for note in table.notes)
    return f"**{table.title}**\n\n{_rows(table.shown(all_columns=True))}\n{notes}"


@functools.cache
def _environment() -> Environment:
    import jinja2

    templates = files("analysis") / "templates"

    def load(name: str) -> str | None:
        source = templates / name
        return source.read_text(encoding="utf-8") if source.is_file() else None

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load),
        autoescape=lambda name: name is not None and ".html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "data_uri": data_uri,
        "with_code": with_code,
        "plain": _plain,
        "rows": _rows,
        "relative": lambda path, folder: Path(os.path.relpath(path, folder)).as_posix(),
    }
    environment.tests["block"] = lambda block, name: type(block).__name__ == name
    return environment


def with_code(text: str) -> Markup:
    """The text escaped, with what is between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def data_uri(png: Path) -> str:
    """A PNG file as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode("ascii")


def _rows(shown: Shown) -> str:
    """A Markdown table."""
    lines = [list(map(_plain, shown.headings))]
    lines.append(["---:" if number else "---" for number in shown.numbers])
    lines += [list(map(_plain, row)) for row in shown.texts]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _plain(text: str) -> str:
    """The text on one line, with the special characters of Markdown and HTML escaped."""
    return re.sub(r"([\\*\[\]<>|])", r"\\\1", " ".join(text.split()))
