"""Writes tables, and pages as one HTML file and as Markdown, into folders that appear complete."""

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
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from analysis.render.document import Document, Table
from analysis.render.table_formats import markdown_rows, plain, table_to_latex, table_to_markdown
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.versioned_json import write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment


def document_to_html(document: Document) -> str:
    """The HTML text of a page, with its pictures; the template escapes all values."""
    return _environment().get_template("report.html.j2").render(document=document)


def document_to_markdown(document: Document) -> str:
    """The Markdown text of a page; paths of pictures are relative to its folder."""
    text = _environment().get_template("report.md.j2").render(document=document)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@functools.cache
def _environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(files("analysis") / "templates")),
        autoescape=lambda name: name is not None and ".html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "data_uri": _data_uri,
        "with_code": _with_code,
        "plain": plain,
        "rows": markdown_rows,
        "relative": lambda path, folder: Path(os.path.relpath(path, folder)).as_posix(),
    }
    environment.tests["block"] = lambda block, name: type(block).__name__ == name
    return environment


def _with_code(text: str) -> Markup:
    """The text escaped, with what is between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _data_uri(png: Path) -> str:
    """A PNG file as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode("ascii")


def write_table(table: Table, folder: Path) -> None:
    """Write `<name>.csv` with all digits, `.md` and `.tex` into `folder`."""
    texts = {
        ".csv": table.frame.to_csv(index=False, lineterminator="\n"),
        ".md": table_to_markdown(table),
        ".tex": table_to_latex(table),
    }
    for ending, text in texts.items():
        write_atomically(folder / f"{table.name}{ending}", text)


def write_page(document: Document, folder: Path) -> Path:
    """Write report.md and report.html into `folder`; returns report.html."""
    write_atomically(folder / "report.md", document_to_markdown(document))
    page = folder / "report.html"
    write_atomically(page, document_to_html(document))
    return page


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
