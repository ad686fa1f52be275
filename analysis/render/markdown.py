"""A report as Markdown, for a terminal, a pull request or a lab book."""

from __future__ import annotations

import os
import re
from pathlib import Path

from analysis.render.document import Block, Bullets, Document, Picture, TableBlock, Text

_LOUD = {"bad": "**Warning:** ", "warning": "**Note:** "}


def document_to_markdown(document: Document) -> str:
    """The whole report; pictures are named relative to the report's folder."""
    parts = [f"# {_escape(document.title)}", _escape(document.subtitle)]
    for section in document.sections:
        parts.append(f"## {_escape(section.title)}")
        parts += [_block(block, document.folder) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block, folder: Path) -> str:
    if isinstance(block, Text):
        return _LOUD.get(block.kind, "") + _escape(block.text)
    if isinstance(block, Bullets):
        return "\n".join(f"- {_escape(item)}" for item in block.items)
    if isinstance(block, Picture):
        png, pdf = (
            Path(os.path.relpath(path, folder)).as_posix() for path in (block.png, block.pdf)
        )
        return f"![{_escape(block.alt)}]({png})\n\n{_escape(block.caption)} ([PDF]({pdf}))"
    return _table(block)


def _table(block: TableBlock) -> str:
    head = "| " + " | ".join(_escape(name) for name in block.columns) + " |"
    rule = "|" + "|".join(
        "---:" if block.is_number(column) else "---" for column in range(len(block.columns))
    )
    lines = [head, rule + "|"]
    lines += ["| " + " | ".join(_escape(cell.text) for cell in row) + " |" for row in block.rows]
    return f"*{_escape(block.caption)}*\n\n" + "\n".join(lines)


def _escape(text: str) -> str:
    """One line, with what Markdown or HTML would take for markup escaped."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", " ".join(text.split()))
