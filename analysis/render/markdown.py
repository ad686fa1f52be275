"""Pages and tables as Markdown."""

from __future__ import annotations

import os
import re
from pathlib import Path

from analysis.render.document import (
    Beside,
    Block,
    Bullets,
    Document,
    Folded,
    Picture,
    Shown,
    Table,
    Text,
)

_PREFIX_OF_KIND = {"bad": "**Warning:** ", "warning": "**Note:** "}


def document_to_markdown(document: Document) -> str:
    """The Markdown text of a page; paths of pictures are relative to its folder."""
    parts = [f"# {_escape(document.title)}", _escape(document.subtitle)]
    for section in document.sections:
        parts.append(f"## {_escape(section.title)}")
        parts += [_block_text(block, document.folder) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def table_to_markdown(table: Table) -> str:
    """All columns of a table, its title above and its notes below."""
    notes = "".join(f"\n{note}\n" for note in table.notes)
    return f"**{table.title}**\n\n{_rows(table.shown(all_columns=True))}\n{notes}"


def _block_text(block: Block, folder: Path) -> str:
    if isinstance(block, Text):
        return _PREFIX_OF_KIND.get(block.kind, "") + _escape(block.text)
    if isinstance(block, Bullets):
        return "\n".join(f"- {_escape(item)}" for item in block.items)
    if isinstance(block, Picture):
        png, pdf = (
            Path(os.path.relpath(path, folder)).as_posix() for path in (block.png, block.pdf)
        )
        return f"![{_escape(block.alt)}]({png})\n\n{_escape(block.caption)} ([PDF]({pdf}))"
    if isinstance(block, Beside):
        parts: tuple[Block, ...] = (*block.pictures, block.table)
        return "\n\n".join(_block_text(part, folder) for part in parts)
    if isinstance(block, Folded):
        inner = [_block_text(part, folder) for part in block.blocks]
        return "\n\n".join([f"### {_escape(block.title)}", *inner])
    return f"*{_escape(block.title)}*\n\n{_rows(block.shown())}"


def _rows(shown: Shown) -> str:
    lines = [list(map(_escape, shown.headings))]
    lines.append(["---:" if number else "---" for number in shown.numbers])
    lines += [list(map(_escape, row)) for row in shown.texts]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escape(text: str) -> str:
    """The text on one line, with the special characters of Markdown and HTML escaped."""
    return re.sub(r"([\\*\[\]<>|])", r"\\\1", " ".join(text.split()))
