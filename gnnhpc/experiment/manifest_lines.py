"""What a sound manifest is: each cell once, and every cell that the run folder names elsewhere.

Experiments are not looked at, as `status` reads ten thousand cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.index_list import format_indices, parse_indices
from gnnhpc.core.json_files import check_version, parse_object, read_bytes, read_object_lines
from gnnhpc.records.block_table import read_block_tables
from gnnhpc.records.run_facts import read_provenance, read_submission_lines
from gnnhpc.records.run_paths import CellPaths, RunPaths

MANIFEST_VERSION = 1
_ALLOWED = "one cell a line"
_KEYS = ("array", "index", "id", "experiment")


@dataclass(frozen=True)
class ManifestLine:
    """A line of a manifest, checked but for its experiment."""

    where: str
    """File and line."""
    id: str
    array: str
    index: int
    raw: dict[str, Any]


@dataclass(frozen=True)
class _Named:
    """What the rest of a run folder says of the cells that there must be."""

    planned: int
    """How many the run was made with; cells may have been added since."""
    submitted: list[tuple[str, str, list[int]]]
    """File, array and indices."""
    tried: list[CellPaths]
    """The cells that have a folder."""


def read_manifest_lines(manifest: Path) -> list[ManifestLine]:
    """All cells, in order.

    Raises InputError naming the line for damage, for another version and for a cell that is there
    twice, and naming the file if it has no cell, or lacks one that provenance.json counts,
    submissions.jsonl or a table of blocks names, or cells/ holds.
    """
    # Read before the manifest, which is where a cell that is added to a run comes first.
    named = _named_elsewhere(RunPaths(manifest.parent))
    try:
        read = read_object_lines(manifest, _ALLOWED)
    except FileNotFoundError:
        raise _no_manifest(manifest) from None
    lines = [parse_manifest_line(raw, where) for where, raw in read]
    if not lines:
        raise InputError(manifest, None, "no cell", _ALLOWED)
    _check_each_once(lines)
    _check_none_is_lost(manifest, lines, named)
    return lines


def find_manifest_line(manifest: Path, array: str, index: int) -> ManifestLine | None:
    """The line of one cell, None where no sound line has it.

    Every rank of every cell looks for its line, so only lines that hold this index are parsed; what
    else is wrong with a manifest `read_manifest_lines` says. Raises InputError where two lines have
    the cell, and for a wanted line of another version or without a key.
    """
    try:
        text = read_bytes(manifest, _ALLOWED)
    except FileNotFoundError:
        raise _no_manifest(manifest) from None
    found: ManifestLine | None = None
    for where, line in _lines_with_index(text, index, manifest):
        try:
            raw = parse_object(line, where, _ALLOWED)
        except InputError:
            continue
        if (raw.get("array"), raw.get("index")) != (array, index):
            continue
        if found is not None:
            raise _index_taken(where, array, index, found.where)
        found = parse_manifest_line(raw, where)
    return found


def _lines_with_index(text: bytes, index: int, manifest: Path) -> Iterator[tuple[str, bytes]]:
    """The lines that have this index somewhere, with their places."""
    end = number = 0
    for match in re.finditer(rb'"index"\s*:\s*%d(?![\d.eE])' % index, text):
        if match.start() < end:
            continue
        start = text.rfind(b"\n", 0, match.start()) + 1
        number += text.count(b"\n", end, start)
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        yield f"{manifest}:{number + 1}", text[start:end]


def parse_manifest_line(raw: dict[str, Any], where: str) -> ManifestLine:
    """Raises InputError for another version, and for a key that is missing or of another type."""
    check_version(raw, MANIFEST_VERSION, where)
    missing = next((key for key in _KEYS if key not in raw), None)
    if missing:
        raise InputError(where, missing, "nothing", "a value")
    index = raw["index"]
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise InputError(where, "index", repr(index), "a whole number from 0")
    for key in ("array", "id"):
        if not isinstance(raw[key], str):
            raise InputError(where, key, repr(raw[key]), "text")
    return ManifestLine(where, raw["id"], raw["array"], index, raw)


def _check_each_once(lines: list[ManifestLine]) -> None:
    """Raises InputError for a cell or an index that is there twice, or an index that is not."""
    by_id: dict[str, ManifestLine] = {}
    by_index: dict[tuple[str, int], ManifestLine] = {}
    for line in lines:
        if (before := by_id.setdefault(line.id, line)) is not line:
            found = f"{line.id}, which {before.where} has too"
            raise InputError(line.where, "id", found, "each cell once")
        if (before := by_index.setdefault((line.array, line.index), line)) is not line:
            raise _index_taken(line.where, line.array, line.index, before.where)
    for (array, index), line in by_index.items():
        if index and (array, index - 1) not in by_index:
            found = f"{index} of {array} without {index - 1}"
            raise InputError(line.where, "index", found, "every index from 0, as they were given")


def _no_manifest(manifest: Path) -> InputError:
    return InputError(manifest, None, "no such file", "the manifest.jsonl of a run")


def _index_taken(where: str, array: str, index: int, before: str) -> InputError:
    found = f"{index} of {array}, which {before} has too"
    return InputError(where, "index", found, "each index of an array once")


def _check_none_is_lost(manifest: Path, lines: list[ManifestLine], named: _Named) -> None:
    if len(lines) < named.planned:
        allowed = f"at least {named.planned}, as provenance.json says"
        raise InputError(manifest, "cells", len(lines), allowed)
    ids = {line.id for line in lines}
    for cell in named.tried:
        if cell.root.name not in ids and cell.attempts():
            found = f"no line of {cell.root.name}, of which cells/ holds an attempt"
            raise InputError(manifest, "cells", found, "a line of every cell of the run")
    places = {(line.array, line.index) for line in lines}
    for file, array, indices in named.submitted:
        lost = [index for index in indices if (array, index) not in places]
        if lost:
            found = f"no line of {array} {format_indices(lost)}, which {file} names"
            raise InputError(manifest, "cells", found, "a line of every cell of the run")


def _named_elsewhere(paths: RunPaths) -> _Named:
    """Raises InputError for a damaged provenance.json, submissions.jsonl or table of blocks."""
    facts = read_provenance(paths)
    planned = 1 if facts is None else facts.get("cells")
    if not isinstance(planned, int) or planned < 1:
        allowed = "how many cells the run was made with"
        raise InputError(paths.provenance, "cells", repr(planned), allowed)
    tables = read_block_tables(paths)
    submitted = [
        ("submissions.jsonl", str(raw.get("array")), parse_indices(str(raw.get("indices")), where))
        for where, raw in read_submission_lines(paths)
        if raw.get("array") not in tables
    ]
    for name, lines in tables.items():
        submitted += [(paths.block_table(name).name, line.array, [line.index]) for line in lines]
    return _Named(planned, submitted, _cells_with_a_folder(paths))


def _cells_with_a_folder(paths: RunPaths) -> list[CellPaths]:
    try:
        return [CellPaths(folder) for folder in sorted(paths.cells.iterdir())]
    except FileNotFoundError:
        return []
    except OSError as error:
        found = f"unreadable ({error.strerror})"
        raise InputError(paths.cells, None, found, "a folder of each cell") from None
