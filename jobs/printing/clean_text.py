"""The text of `clean`: what it would remove, and how much that is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobs.folder.removable import KINDS, Removable
from jobs.printing.sizes import format_size


def clean_lines(found: Sequence[Removable], run: Path, size: int | None) -> list[str]:
    """A line a kind; then all together, beside the size of the run folder."""
    rows = []
    for kind in KINDS:
        some = [one for one in found if one.kind == kind]
        if some:
            rows.append((kind, str(len(some)), format_size(_total(some))))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    form = f"{{:<{widths[0]}}}  {{:>{widths[1]}}}  {{:>{widths[2]}}}"
    last = f"together {format_size(_total(found))} of the {format_size(size)} of {run}"
    return [*(form.format(*row) for row in rows), last]


def together(removed: Sequence[Removable]) -> str:
    """`17 files and folders, 1.2 GiB`."""
    return f"{len(removed)} files and folders, {format_size(_total(removed))}"


def _total(found: Sequence[Removable]) -> int | None:
    """Bytes of all; None where one is not known."""
    sizes = [one.size for one in found if one.size is not None]
    return sum(sizes) if len(sizes) == len(found) else None
