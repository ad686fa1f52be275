"""Many rank files at once into columns: a few hundred thousand records in seconds."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
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

from gnnhpc.errors import InputError
from gnnhpc.records import check_header, read_lines

PHASES = ["train", "test"]
_BATCH_BYTES = 24 << 20
# Lines are a few kilobytes at most; a parser thread takes a block.
_BLOCK_BYTES = 4 << 20

_INTEGERS = ("step", "epoch", "samples")
_SECONDS = (
    "start_s",
    "wall_s",
    "cpu_s",
    "forward_s",
    "backward_s",
    "allreduce_s",
    "optimizer_s",
    "wait_s",
    "data_s",
)
# Null where a rank or a machine does not have them, so kept as floats.
_OPTIONAL = (
    "loss",
    "peak_rss_mib",
    "peak_device_mib",
    "involuntary_switches",
    "steal_s",
    "grad_norm",
)
FIELDS = frozenset({"phase", "warmup", *_INTEGERS, *_SECONDS, *_OPTIONAL})
"""Columns of the step frame that every run has; the others are metrics."""

_SCHEMA = pa.schema(
    [("kind", pa.string()), ("phase", pa.string()), ("name", pa.string())]
    + [("warmup", pa.bool_()), ("microbatch", pa.float64()), ("end_s", pa.float64())]
    + [(name, pa.int64()) for name in _INTEGERS]
    + [(name, pa.float64()) for name in (*_SECONDS, *_OPTIONAL)]
)


@dataclass(frozen=True)
class Source:
    """One rank's file, and which of its training steps count."""

    path: Path
    cell: int
    """Its cell's place in the manifest."""
    attempt: int
    first: int = 0
    """The step it went on from, if not from the start."""
    stop: int | None = None
    """The step from which a later attempt did it again."""
    warmup_steps: int = 0


@dataclass
class Columns:
    """What the files hold; each frame has `source`, the number of the file its rows are from."""

    headers: list[dict[str, Any] | None]
    """One a source; none where a rank died before it wrote one."""
    steps: pd.DataFrame
    groups: pd.DataFrame
    spans: pd.DataFrame


@dataclass
class _Batch:
    """Lines of several files, without headers and events."""

    bodies: list[bytes] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    size: int = 0

    def add(self, source: int, body: bytes) -> None:
        self.bodies.append(body)
        self.sources.append(source)
        self.lines.append(body.count(b"\n"))
        self.size += len(body)


def read(sources: list[Source]) -> Columns:
    """Read all files; a last line cut short is left out.

    Raises InputError naming file and line for another schema or a damaged line before the last.
    """
    columns = Columns([], pd.DataFrame(), pd.DataFrame(), pd.DataFrame())
    pieces: dict[str, list[pd.DataFrame]] = {"steps": [], "groups": [], "spans": []}
    for batch, table in _parsed(sources, columns.headers):
        origin = np.repeat(np.array(batch.sources, dtype=np.int32), batch.lines)
        _check(table, origin, sources)
        is_step = pc.equal(table["kind"], "step").combine_chunks()
        steps, step_origin = table.filter(is_step), origin[_mask(is_step)]
        pieces["steps"].append(_steps(steps, step_origin))
        pieces["groups"] += list(_groups(steps, step_origin, sources))
        is_span = pc.equal(table["kind"], "span").combine_chunks()
        if is_span.true_count:
            pieces["spans"].append(_spans(table.filter(is_span), origin[_mask(is_span)]))
    columns.steps = _concat(pieces["steps"], [*_INTEGERS, "warmup", *_SECONDS, *_OPTIONAL])
    columns.groups = _concat(pieces["groups"], ["step", "group", "forward_s", "backward_s"])
    columns.spans = _concat(pieces["spans"], ["step", "name", "microbatch", "start_s", "end_s"])
    return columns


def _parsed(
    sources: list[Source], headers: list[dict[str, Any] | None]
) -> Iterator[tuple[_Batch, pa.Table]]:
    """Batches with their tables; the next is parsed while the last is made use of."""
    with ThreadPoolExecutor(1) as pool:
        ahead: deque[tuple[_Batch, Future[pa.Table]]] = deque()
        for batch in _batches(sources, headers):
            ahead.append((batch, pool.submit(_parse, batch, sources)))
            if len(ahead) > 1:
                ready, future = ahead.popleft()
                yield ready, future.result()
        for ready, future in ahead:
            yield ready, future.result()


def _check(table: pa.Table, origin: NDArray[Any], sources: list[Source]) -> None:
    """Every line is a step or a span, of a known phase, with its step."""
    known = pc.and_(
        pc.is_in(table["phase"], value_set=pa.array(PHASES)),
        pc.is_in(table["kind"], value_set=pa.array(["step", "span"])),
    )
    good = pc.and_(known, pc.is_valid(table["step"]))
    if not pc.all(good, min_count=0).as_py():
        first = pc.index(good, False).as_py()
        path = sources[int(origin[first])].path
        line = 2 + first - int(np.argmax(origin == origin[first]))
        raise InputError(f"{path}:{line}", None, "a record without kind, phase or step", "records")


def _batches(sources: list[Source], headers: list[dict[str, Any] | None]) -> Iterator[_Batch]:
    """Whole files, together about as large as parses well; `headers` is filled on the way."""
    batch = _Batch()
    for number, source in enumerate(sources):
        header, body = _split(source.path)
        headers.append(header)
        if body:
            batch.add(number, body)
        if batch.size > _BATCH_BYTES:
            yield batch
            batch = _Batch()
    if batch.bodies:
        yield batch


def _split(path: Path) -> tuple[dict[str, Any] | None, bytes]:
    """Header and whole lines of steps and spans of one file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise InputError(path, None, "no such file", "the records of each rank") from None
    first, _, body = text.partition(b"\n")
    if not body and not _whole(first):
        return None, b""
    try:
        header = check_header(json.loads(first), path)
    except ValueError:
        raise InputError(f"{path}:1", None, "damaged JSON", "one record a line") from None
    if body and not body.endswith(b"\n"):
        kept, _, tail = body.rpartition(b"\n")
        body = body + b"\n" if _whole(tail) else kept + b"\n" if kept else b""
    if b'"event"' in body or b"\n\n" in body:
        kept_lines = [line for line in body.split(b"\n") if line.strip() and not _is_event(line)]
        body = b"".join(line + b"\n" for line in kept_lines)
    return header, body


def _whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _is_event(line: bytes) -> bool:
    """Events carry free-form detail, which does not fit in columns."""
    return b'"event"' in line and json.loads(line).get("kind") == "event"


def _parse(batch: _Batch, sources: list[Source]) -> pa.Table:
    options = pj.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="infer")
    text = b"".join(batch.bodies)
    reading = pj.ReadOptions(block_size=_BLOCK_BYTES)
    try:
        table = pj.read_json(BytesIO(text), read_options=reading, parse_options=options)
    except pa.ArrowInvalid as error:
        for number in batch.sources:
            read_lines(sources[number].path)
        where = ", ".join(str(sources[n].path) for n in batch.sources[:1])
        raise InputError(where, None, f"records that do not fit ({error})", "as written") from None
    if table.num_rows != sum(batch.lines):
        raise InputError(sources[batch.sources[0]].path, None, "damaged lines", "one record a line")
    return table


def _mask(array: pa.BooleanArray) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = array.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _phase(table: pa.Table) -> pd.Categorical[Any]:
    codes = pc.index_in(table["phase"], value_set=pa.array(PHASES)).to_numpy()
    return pd.Categorical.from_codes(codes.astype(np.int8), pd.Index(PHASES))


def _steps(table: pa.Table, origin: NDArray[Any]) -> pd.DataFrame:
    data: dict[str, Any] = {"source": origin, "phase": _phase(table)}
    for name in (*_INTEGERS, "warmup", *_SECONDS, *_OPTIONAL):
        data[name] = table[name].to_numpy()
    for name, values in _fields(table, "metrics"):
        key = name if name not in data else f"metric_{name}"
        data[key] = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return pd.DataFrame(data)


def _fields(table: pa.Table, column: str) -> Iterator[tuple[str, pa.Array]]:
    """The fields of a column of objects, where there are any."""
    if column not in table.column_names or not pa.types.is_struct(table[column].type):
        return
    struct = table[column].combine_chunks()
    for index in range(struct.type.num_fields):
        yield struct.type.field(index).name, pc.struct_field(struct, [index])


def _groups(table: pa.Table, origin: NDArray[Any], sources: list[Source]) -> Iterator[pd.DataFrame]:
    phase = _phase(table)
    step = table["step"].to_numpy()
    for name, lists in _fields(table, "groups"):
        rows = np.flatnonzero(lists.is_valid().to_numpy(zero_copy_only=False))
        if not rows.size:
            continue
        flat = lists.flatten().to_numpy(zero_copy_only=False)
        if flat.size != 2 * rows.size:
            path = sources[int(origin[rows[0]])].path
            raise InputError(path, f"groups.{name}", "another form", "forward, backward seconds")
        seconds = flat.reshape(-1, 2)
        yield pd.DataFrame(
            {
                "source": origin[rows],
                "phase": phase[rows],
                "step": step[rows].astype(np.int32),
                "group": pd.Categorical.from_codes(np.zeros(rows.size, np.int8), pd.Index([name])),
                "forward_s": seconds[:, 0].copy(),
                "backward_s": seconds[:, 1].copy(),
            }
        )


def _spans(table: pa.Table, origin: NDArray[Any]) -> pd.DataFrame:
    names = table["name"].combine_chunks().dictionary_encode()
    return pd.DataFrame(
        {
            "source": origin,
            "phase": _phase(table),
            "step": table["step"].to_numpy(),
            "name": names.to_pandas(),
            "microbatch": table["microbatch"].to_numpy(),
            "start_s": table["start_s"].to_numpy(),
            "end_s": table["end_s"].to_numpy(),
        }
    )


def _concat(pieces: Iterable[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """All pieces, their categories joined; an empty frame with the right columns for none."""
    frames = list(pieces)
    if not frames:
        types = {"warmup": bool, **dict.fromkeys(_INTEGERS, np.int64)}
        empty = pd.DataFrame({name: pd.Series(dtype=types.get(name, float)) for name in columns})
        return empty.assign(source=np.array([], np.int32), phase=pd.Categorical([], PHASES))
    for name in ("group", "name"):
        if name in frames[0]:
            categories = sorted({c for frame in frames for c in frame[name].cat.categories})
            for frame in frames:
                frame[name] = frame[name].cat.set_categories(categories)
    return pd.concat(frames, ignore_index=True)
