"""Documents and tables as Markdown."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from analysis.render.cell_text import format_rows
from analysis.render.document import (
    Beside,
    Block,
    Bullets,
    Document,
    Folded,
    Picture,
    TableBlock,
    Text,
)
from analysis.render.interval_text import join_intervals
from analysis.render.named_table import NamedTable, is_number_column

_ESCAPES = str.maketrans({"|": "\\|", "\n": " "})
_PREFIX_OF_KIND = {"bad": "**Warning:** ", "warning": "**Note:** "}


def document_to_markdown(document: Document) -> str:
    """The Markdown text of a document; paths of pictures are relative to its folder."""
    parts = [f"# {_escape(document.title)}", _escape(document.subtitle)]
    for section in document.sections:
        parts.append(f"## {_escape(section.title)}")
        parts += [_block_text(block, document.folder) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


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
    return _block_table(block)


def _block_table(block: TableBlock) -> str:
    head = "| " + " | ".join(_escape(name) for name in block.columns) + " |"
    rule = "|" + "|".join(
        "---:" if block.is_number(column) else "---" for column in range(len(block.columns))
    )
    lines = [head, rule + "|"]
    lines += ["| " + " | ".join(_escape(cell.text) for cell in row) + " |" for row in block.rows]
    return f"*{_escape(block.caption)}*\n\n" + "\n".join(lines)


def _escape(text: str) -> str:
    """The text on one line, with the special characters of Markdown and HTML escaped."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", " ".join(text.split()))


def table_to_markdown(table: NamedTable) -> str:
    """A table in GitHub's Markdown, its title above and its notes below."""
    frame = join_intervals(table.frame)
    columns = [str(name).translate(_ESCAPES) for name in frame.columns]
    align = ["---:" if is_number_column(frame.iloc[:, i]) else "---" for i in range(len(columns))]
    lines = [f"**{table.title}**", "", _table_row(columns), _table_row(align)]
    lines += [_table_row([text.translate(_ESCAPES) for text in row]) for row in format_rows(frame)]
    lines += [line for note in table.notes for line in ("", note)]
    return "\n".join(lines) + "\n"


def _table_row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"
