"""Parses many rank files together: a few hundred thousand records in seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray
from pydantic_core import from_json

from analysis.loading.record_frames import (
    PHASES,
    RECORD_SCHEMA,
    STEP_COLUMNS,
    group_frames,
    join_frames,
    part_frame,
    span_frame,
    step_frame,
)
from gnnhpc.core.errors import InputError
from gnnhpc.core.json_files import parse_object, read_bytes
from gnnhpc.records.schema import check_header, read_lines

_BATCH_BYTES = 24 << 20
# What one parser thread takes at a time; a line has a few kilobytes at most.
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class RankFile:
    """One rank's file, and which of its training steps count."""

    path: Path
    cell: int
    """The cell's position in the manifest."""
    attempt: int
    first: int = 0
    """The training step at which its attempt resumed, else 0."""
    stop: int | None = None
    """The training step from which a later attempt repeated it, if one did."""
    warmup_steps: int = 0


@dataclass
class RankFrames:
    """The files' records; in each frame `source` is the number of the file that a row is from."""

    headers: list[dict[str, Any] | None]
    """One a file; None where a rank died before it wrote one."""
    steps: pd.DataFrame
    groups: pd.DataFrame
    parts: pd.DataFrame
    spans: pd.DataFrame


@dataclass
class _Batch:
    """Lines of several files, without headers and events."""

    bodies: list[bytes] = field(default_factory=list)
    file_numbers: list[int] = field(default_factory=list)
    """The file of each body, its position in the list that is read."""
    lines: list[int] = field(default_factory=list)
    size: int = 0

    def add(self, number: int, body: bytes) -> None:
        self.bodies.append(body)
        self.file_numbers.append(number)
        self.lines.append(body.count(b"\n"))
        self.size += len(body)


def read_rank_files(files: list[RankFile]) -> RankFrames:
    """Read all files; an incomplete last line is skipped.

    Raises InputError naming file and line for another schema or a damaged line before the last.
    """
    frames = RankFrames([], *(pd.DataFrame() for _ in range(4)))
    paths = [file.path for file in files]
    pieces: dict[str, list[pd.DataFrame]] = {"steps": [], "groups": [], "parts": [], "spans": []}
    for batch, table in _parsed_batches(files, frames.headers):
        file_numbers = np.repeat(np.array(batch.file_numbers, dtype=np.int32), batch.lines)
        _check_records(table, file_numbers, files)
        is_step = pc.equal(table["kind"], "step").combine_chunks()
        steps, step_file_numbers = table, file_numbers
        if is_step.true_count < len(is_step):
            steps, step_file_numbers = table.filter(is_step), file_numbers[_as_mask(is_step)]
        pieces["steps"].append(step_frame(steps, step_file_numbers))
        pieces["groups"] += group_frames(steps, step_file_numbers, paths)
        of_parts = part_frame(steps, step_file_numbers, paths)
        if of_parts is not None:
            pieces["parts"].append(of_parts)
        is_span = pc.equal(table["kind"], "span").combine_chunks()
        if is_span.true_count:
            pieces["spans"].append(
                span_frame(table.filter(is_span), file_numbers[_as_mask(is_span)])
            )
    frames.steps = join_frames(pieces["steps"], sorted(STEP_COLUMNS))
    frames.groups = join_frames(pieces["groups"], ["step", "group", "forward_s", "backward_s"])
    frames.parts = join_frames(
        pieces["parts"], ["step", "part", "forward_s", "backward_s", "weights_s"]
    )
    span_columns = ["step", "name", "microbatch", "start_s", "end_s", "part"]
    frames.spans = join_frames(pieces["spans"], span_columns)
    return frames


def _parsed_batches(
    files: list[RankFile], headers: list[dict[str, Any] | None]
) -> Iterator[tuple[_Batch, pa.Table]]:
    """Batches with their tables; the next is parsed while the caller uses the last."""
    with ThreadPoolExecutor(1) as pool:
        ahead: deque[tuple[_Batch, Future[pa.Table]]] = deque()
        for batch in _batches(files, headers):
            ahead.append((batch, pool.submit(_parse, batch, files)))
            if len(ahead) > 1:
                ready, future = ahead.popleft()
                yield ready, future.result()
        for ready, future in ahead:
            yield ready, future.result()


def _check_records(table: pa.Table, file_numbers: NDArray[Any], files: list[RankFile]) -> None:
    """Raises InputError for a line that is no step or span of a known phase with its step."""
    known = pc.and_(
        pc.is_in(table["phase"], value_set=pa.array(PHASES)),
        pc.is_in(table["kind"], value_set=pa.array(["step", "span"])),
    )
    good = pc.and_(known, pc.is_valid(table["step"]))
    if not pc.all(good, min_count=0).as_py():
        first = pc.index(good, False).as_py()
        path = files[int(file_numbers[first])].path
        line = 2 + first - int(np.argmax(file_numbers == file_numbers[first]))
        raise InputError(f"{path}:{line}", None, "a record without kind, phase or step", "records")


def _batches(files: list[RankFile], headers: list[dict[str, Any] | None]) -> Iterator[_Batch]:
    """Batches of whole files of about 24 MiB; appends each file's header to `headers`."""
    batch = _Batch()
    for number, file in enumerate(files):
        header, body = _read_rank_file(file.path)
        headers.append(header)
        if body:
            batch.add(number, body)
        if batch.size > _BATCH_BYTES:
            yield batch
            batch = _Batch()
    if batch.bodies:
        yield batch


def _read_rank_file(path: Path) -> tuple[dict[str, Any] | None, bytes]:
    """The header of one file, and its complete lines of steps and spans."""
    try:
        text = read_bytes(path, "the records of each rank")
    except FileNotFoundError:
        raise InputError(path, None, "no such file", "the records of each rank") from None
    first, _, body = text.partition(b"\n")
    if not body and not _is_json(first):
        return None, b""
    header = check_header(parse_object(first, f"{path}:1", "one record a line"), path)
    _check_text(body, path)
    if body and not body.endswith(b"\n"):
        kept, _, tail = body.rpartition(b"\n")
        body = body + b"\n" if _is_json(tail) else kept + b"\n" if kept else b""
    if b'"event"' in body:
        body = b"".join(
            line + b"\n"
            for number, line in enumerate(body.split(b"\n"), 2)
            if line.strip() and not _is_event(line, f"{path}:{number}")
        )
    return header, b"" if body.isspace() else body


def _check_text(body: bytes, path: Path) -> None:
    """The parser takes any bytes for the names of metrics and groups."""
    if body.isascii():
        return
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 2 + body.count(b"\n", 0, error.start)
        raise InputError(f"{path}:{line}", None, "bytes that are no UTF-8", "text") from None


def _is_json(line: bytes) -> bool:
    try:
        from_json(line)
    except ValueError:
        return False
    return True


def _is_event(line: bytes, where: object) -> bool:
    """Whether a line is an event; events have free-form details, which do not fit in columns."""
    return (
        b'"event"' in line and parse_object(line, where, "one record a line").get("kind") == "event"
    )


def _parse(batch: _Batch, files: list[RankFile]) -> pa.Table:
    options = pj.ParseOptions(explicit_schema=RECORD_SCHEMA, unexpected_field_behavior="infer")
    text = b"".join(batch.bodies)
    reading = pj.ReadOptions(block_size=_BLOCK_BYTES)
    try:
        table = pj.read_json(BytesIO(text), read_options=reading, parse_options=options)
    except pa.ArrowInvalid as error:
        for number in batch.file_numbers:
            read_lines(files[number].path)
        where = ", ".join(str(files[n].path) for n in batch.file_numbers[:1])
        raise InputError(where, None, f"records that do not fit ({error})", "as written") from None
    if table.num_rows != sum(batch.lines):
        # Blank lines are not records.
        batch.lines = [sum(1 for line in b.split(b"\n") if line.strip()) for b in batch.bodies]
    if table.num_rows != sum(batch.lines):
        raise InputError(
            files[batch.file_numbers[0]].path, None, "damaged lines", "one record a line"
        )
    return table


def _as_mask(array: pa.BooleanArray) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = array.fill_null(False).to_numpy(zero_copy_only=False)
    return mask
