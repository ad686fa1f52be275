"""Parses the ranks' record files into data frames: steps, seconds of layers and stages, spans."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from analysis.load.run_folders import RankFile, StoredCell
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.core.versioned_json import parse_object, read_bytes
from gnnhpc.records.schema import SpanRecord, StepRecord, check_header, read_lines

PHASES = ["train", "test"]
REPLICA_LOSS = "replica_loss"
"""The metric of one replica's loss, before it is averaged over replicas."""
_PLACE = ("cell", "attempt", "rank", "stage", "replica", "host")
"""Of a file: its cell, and what its header has."""
_EVENT = b'"kind": "event"'
"""What the line of an event contains, as it is written."""


def _arrow_types(record: type) -> dict[str, pa.DataType]:
    """The fields of a record; those that hold dictionaries are left out, as their keys differ."""
    found = {}
    for name, hint in get_type_hints(record).items():
        if hint is bool:
            found[name] = pa.bool_()
        elif hint is int:
            found[name] = pa.int64()
        elif hint in (float, float | None, int | None):
            found[name] = pa.float64()
        elif get_origin(hint) is Literal:
            found[name] = pa.string()
    return found


_STEP_TYPES = _arrow_types(StepRecord)
_TYPES = {**_arrow_types(SpanRecord), **_STEP_TYPES}
_SCHEMA = pa.schema(_TYPES | {"virtual_stage_s": pa.list_(pa.list_(pa.float64()))})
STEP_COLUMNS = frozenset(_STEP_TYPES) - {"kind"}
"""Columns of every frame of steps; the other columns are metrics."""


def read_records(cells: Sequence[StoredCell]) -> Iterator[pd.DataFrame]:
    """Read the record files of all cells; a cell gets the headers of its files, or is damaged.

    Yields steps of ranks, and layer_times, stage_times and spans as `RunData` has them, with cell,
    rank, stage, replica and host. An incomplete last line is left out, as of a rank that died while
    writing. Of a step that several attempts recorded the frames have the newest one's.
    """
    files = [(cell, file) for cell in cells for file in cell.files()]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        read = list(pool.map(_read_file, (file for _, file in files)))
    parsed = [(cell, one) for (cell, _), one in zip(files, read, strict=True)]
    for cell, one in parsed:
        if isinstance(one, InputError):
            cell.mark_damaged(str(one))
    tables = [_SCHEMA.empty_table().append_column("source", pa.array([], pa.int32()))]
    places: list[tuple[Any, ...]] = []
    for cell, one in parsed:
        if isinstance(one, InputError) or one is None or cell.damaged:
            continue
        header, rows = one
        cell.headers.append(header)
        if rows is not None:
            source = pa.array(np.full(rows.num_rows, len(places), np.int32))
            tables.append(rows.append_column("source", source))
            places.append((cell.name, *(header[name] for name in _PLACE[1:])))
    of_files = pd.DataFrame(places, columns=list(_PLACE))
    of_files = of_files.astype(dict.fromkeys(("rank", "stage", "replica"), np.int16))
    of_files["cell"] = pd.Categorical(of_files["cell"], [cell.name for cell in cells])
    of_files["host"] = of_files["host"].astype("category")
    table = pa.concat_tables(tables, promote_options="permissive")
    steps = table.filter(pc.equal(table["kind"], "step"))
    spans = table.filter(pc.equal(table["kind"], "span"))
    frames = (_steps(steps), _layer_times(steps), _stage_times(steps), _frame(spans, SpanRecord))
    return (_newest(_placed(frame, of_files)) for frame in frames)


def _read_file(file: RankFile) -> tuple[Mapping[str, Any], pa.Table | None] | InputError | None:
    """The header of one file, and the table of its complete lines.

    None for a file whose rank died before it had written its header. An error for a missing file,
    one that changed since it was written, one of another cell or attempt, and damaged lines.
    """
    path, written = file
    try:
        first, newline, body = _content(path, written).partition(b"\n")
        if not newline:
            return None
        header = check_header(parse_object(first, f"{path}:1", "one record a line"), path)
        attempt = AttemptPaths(path.parent)
        for key, value in (("cell", attempt.cell), ("attempt", attempt.number)):
            if header[key] != value:
                raise InputError(path, key, header[key], f"{value}, as its path says")
        lines = body[: body.rfind(b"\n") + 1]
        if _EVENT in lines:
            # The detail of an event has no fixed columns.
            lines = b"".join(one for one in lines.splitlines(keepends=True) if _EVENT not in one)
        return header, _parse(lines, path) if lines else None
    except InputError as error:
        return error


def _content(path: Path, written: Mapping[str, Any] | None) -> bytes:
    """The whole file; events may follow after what the result has a digest of."""
    allowed = "the records of each rank"
    try:
        content = read_bytes(path, allowed)
    except FileNotFoundError:
        raise InputError(path, None, "no such file", allowed) from None
    if written is not None:
        size = written["size"]
        unchanged = hashlib.sha256(content[:size]).hexdigest() == written["sha256"]
        if not unchanged or any(_EVENT not in one for one in content[size:].splitlines()):
            found = "changed since it was written"
            raise InputError(path, "content", found, "as result.json has it")
    return content


def _parse(body: bytes, path: Path) -> pa.Table:
    """Raises InputError that names the line of damaged JSON."""
    options = pj.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="infer")
    reading = pj.ReadOptions(block_size=max(1 << 20, len(body) + 1))
    try:
        return pj.read_json(BytesIO(body), read_options=reading, parse_options=options)
    except pa.ArrowInvalid as error:
        read_lines(path)
        raise InputError(path, None, f"records that do not fit ({error})", "as written") from None


def _frame(table: pa.Table, record: type) -> pd.DataFrame:
    """The columns of a kind of record, and the number of the file."""
    names = [name for name in _arrow_types(record) if name != "kind"]
    words = [name for name in ("phase", "name") if name in names]
    columns = table.select(["source", *names])
    frame: pd.DataFrame = columns.to_pandas(categories=words, split_blocks=True)
    return frame.assign(phase=frame["phase"].cat.set_categories(PHASES))


def _steps(table: pa.Table) -> pd.DataFrame:
    """One row a rank and mini-batch, with its metrics."""
    metrics = (values.astype(float) for values in _struct_fields(table, "metrics"))
    return pd.concat([_frame(table, StepRecord), *metrics], axis=1)


def _struct_fields(table: pa.Table, column: str) -> Iterator[pd.Series[Any]]:
    """Each field of a column of dictionaries; none where no record has one."""
    if column in table.column_names and pa.types.is_struct(table[column].type):
        struct = table[column].combine_chunks()
        for field, values in zip(struct.type, struct.flatten(), strict=True):
            yield values.to_pandas().rename(field.name)


def _layer_times(table: pa.Table) -> pd.DataFrame:
    """One row a rank, profiled step and group of layers."""
    table = table.filter(table["profiled"])
    keys = _frame(table, StepRecord)[["source", "phase", "step"]]
    groups = list(_struct_fields(table, "groups"))
    known = [one.dropna() for one in groups]
    parts = [keys.loc[one.index].assign(group=str(one.name)) for one in known]
    times = pd.concat([keys.iloc[:0].assign(group=""), *parts], ignore_index=True)
    seconds = np.array([pair for one in known for pair in one], dtype=float).reshape(-1, 2)
    names = pd.Index([one.name for one in groups], dtype=object)
    times["group"] = pd.Categorical(times["group"], names)
    return times.assign(forward_s=seconds[:, 0], backward_s=seconds[:, 1])


def _stage_times(table: pa.Table) -> pd.DataFrame:
    """One row a rank, step and virtual stage; of a stage that is one, the step's seconds."""
    seconds = ["forward_s", "backward_s", "weights_s"]
    steps = _frame(table, StepRecord)[["source", "phase", "step", *seconds]]
    lists = table["virtual_stage_s"].to_pandas()
    has_lists = lists.str.len() > 0
    single = steps[~has_lists & steps["forward_s"].notna()].assign(virtual_stage=np.int16(0))
    several = lists[has_lists].explode()
    # Only a split backward has seconds of weights.
    values = pd.DataFrame([*map(list, several)], several.index).reindex(columns=range(3))
    rows = steps.loc[several.index].assign(
        **dict(zip(seconds, values.to_numpy(dtype=float).T, strict=True)),
        virtual_stage=several.groupby(level=0).cumcount().to_numpy(np.int16),
    )
    times: pd.DataFrame = pd.concat([single, rows], ignore_index=True)
    return times


def _placed(frame: pd.DataFrame, of_files: pd.DataFrame) -> pd.DataFrame:
    """`frame` with the place of each row's file instead of `source`."""
    source = frame.pop("source").to_numpy()
    place = {name: of_files[name].array[source] for name in _PLACE}
    return pd.concat([pd.DataFrame(place, frame.index), frame], axis=1)


def _newest(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the newest attempt that recorded each step; only resumed cells have several."""
    if (rows["attempt"].groupby(rows["cell"], observed=True).nunique() > 1).any():
        step = rows.groupby(["cell", "rank", "phase", "step"], observed=True, sort=False)
        rows = rows[rows["attempt"] == step["attempt"].transform("max")]
    return rows.drop(columns="attempt")
