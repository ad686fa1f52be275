"""Writes tables, and folders that appear complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analysis.render.document import Document, Table
from analysis.render.latex import table_to_latex
from analysis.render.pages import document_to_html, document_to_markdown, table_to_markdown
from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.versioned_json import write_atomically


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
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    except OSError as error:
        found = f"{out.parent} ({error.strerror})"
        raise InputError("--out", None, found, "a folder you may write in") from None
    try:
        yield temporary
        _move_into_place(temporary, out)
    except OSError as error:
        raise GnnhpcError(f"{out}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move_into_place(temporary: Path, out: Path) -> None:
    """Rename the folder to `out`, or move its entries into `out` if that exists."""
    if not out.exists():
        temporary.rename(out)
        return
    for number, entry in enumerate(sorted(temporary.iterdir())):
        target = out / entry.name
        if target.is_dir() and not target.is_symlink():
            target.rename(temporary / f".old-{number}")
        entry.replace(target)
