"""Parses the ranks' record files into data frames: steps, seconds of layers and stages, spans."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from analysis.load.validate_records import check_file_digest, split_header
from gnnhpc.core.errors import InputError
from gnnhpc.records.schema import read_lines

PHASES = ["train", "test"]
_INTEGERS = ("step", "epoch", "samples")
_SECONDS = (
    *("start_s", "wall_s", "cpu_s", "forward_s", "backward_s", "allreduce_s", "optimizer_s"),
    *("wait_s", "data_s", "recompute_s", "weights_s", "sample_s", "gather_s"),
    *("run_delay_s", "steal_s"),
)
_OTHERS = (
    *("loss", "grad_norm", "peak_rss_mib", "peak_device_mib", "involuntary_switches"),
    "sampled_edges",
)
_FLAGS = ("warmup", "profiled")
STEP_COLUMNS = frozenset({"phase", *_FLAGS, *_INTEGERS, *_SECONDS, *_OTHERS})
"""Columns of every frame of steps; the other columns are metrics."""
REPLICA_LOSS = "replica_loss"
"""The metric of one replica's loss, before it is averaged over replicas."""
_METRIC = "metric_"
"""Precedes the name of a metric that another column already has."""
_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("kind", "phase", "name")]
    + [(name, pa.bool_()) for name in _FLAGS]
    + [(name, pa.float64()) for name in ("microbatch", "end_s")]
    + [("virtual_stage", pa.int16()), ("virtual_stage_s", pa.list_(pa.list_(pa.float64())))]
    + [(name, pa.int64()) for name in _INTEGERS]
    + [(name, pa.float64()) for name in (*_SECONDS, *_OTHERS)]
)


@dataclass(frozen=True)
class RankFile:
    """One rank's record file in one attempt at a cell."""

    path: Path
    cell: int
    """The cell's position in the manifest."""
    cell_id: str
    attempt: int
    rank: int
    written: Mapping[str, Any] | None = None
    """Size and SHA-256 that the result has of this file; None for an attempt that is not done."""


@dataclass
class Records:
    """The records of several files; in each frame, `source` is the number of a row's file."""

    headers: list[dict[str, Any] | None]
    """One a file; None for a file without a header, and for a damaged file."""
    damage: dict[int, str]
    """What is wrong with each damaged file, by its number; its records are in no frame."""
    steps: pd.DataFrame
    """One row a rank and mini-batch."""
    layer_times: pd.DataFrame
    """Forward and backward seconds of each group of layers, in profiled steps."""
    stage_times: pd.DataFrame
    """Forward, backward and weight-gradient seconds of each virtual stage, where measured."""
    spans: pd.DataFrame


def read_records(files: Sequence[RankFile]) -> Records:
    """Read all files; an incomplete last line is left out, as of a rank that died while writing."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        parsed = list(pool.map(_read_file, files))
    headers = [None if isinstance(one, str) else one[0] for one in parsed]
    damage = {number: one for number, one in enumerate(parsed) if isinstance(one, str)}
    tables = [_SCHEMA.empty_table().append_column("source", pa.array([], pa.int32()))]
    for number, one in enumerate(parsed):
        if not isinstance(one, str) and one[1] is not None:
            source = pa.array(np.full(one[1].num_rows, number, np.int32))
            tables.append(one[1].append_column("source", source))
    table = pa.concat_tables(tables, promote_options="permissive")
    steps = table.filter(pc.equal(table["kind"], "step"))
    spans = table.filter(pc.equal(table["kind"], "span"))
    frame = _step_frame(steps)
    return Records(
        headers, damage, frame, _layer_times(steps), _stage_times(steps, frame), _span_frame(spans)
    )


def _read_file(file: RankFile) -> tuple[dict[str, Any] | None, pa.Table | None] | str:
    """The header and the table of one file, or what is wrong with it."""
    try:
        text = check_file_digest(file.path, file.written)
        header, body = split_header(
            text, file.path, {"cell": file.cell_id, "attempt": file.attempt, "rank": file.rank}
        )
        return header, _parse(body, file.path) if body else None
    except InputError as error:
        return str(error)


def _parse(body: bytes, path: Path) -> pa.Table:
    """Raises InputError that names the line of damaged JSON."""
    options = pj.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="infer")
    reading = pj.ReadOptions(block_size=max(1 << 20, len(body) + 1))
    try:
        return pj.read_json(BytesIO(body), read_options=reading, parse_options=options)
    except pa.ArrowInvalid as error:
        read_lines(path)
        raise InputError(path, None, f"records that do not fit ({error})", "as written") from None


def _phase(table: pa.Table) -> pd.Categorical[Any]:
    codes = pc.index_in(table["phase"], value_set=pa.array(PHASES)).to_numpy()
    return pd.Categorical.from_codes(codes.astype(np.int8), pd.Index(PHASES))


def _step_frame(table: pa.Table) -> pd.DataFrame:
    data: dict[str, Any] = {"source": table["source"].to_numpy(), "phase": _phase(table)}
    for name in (*_INTEGERS, *_SECONDS, *_OTHERS):
        data[name] = table[name].to_numpy()
    for name in _FLAGS:
        data[name] = pc.fill_null(table[name], False).to_numpy()
    for name, values in _struct_fields(table, "metrics"):
        key = name if name not in data else f"{_METRIC}{name}"
        data[key] = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return pd.DataFrame(data)


def _struct_fields(table: pa.Table, column: str) -> Iterator[tuple[str, pa.Array]]:
    """Name and values of each field of a struct column; nothing for other columns."""
    if column not in table.column_names or not pa.types.is_struct(table[column].type):
        return
    struct = table[column].combine_chunks()
    for index in range(struct.type.num_fields):
        yield struct.type.field(index).name, pc.struct_field(struct, [index])


def _layer_times(table: pa.Table) -> pd.DataFrame:
    """One row a rank, profiled step and group of layers."""
    pieces = []
    for name, pairs in _struct_fields(table, "groups"):
        rows = np.flatnonzero(pairs.is_valid().to_numpy(zero_copy_only=False))
        if rows.size:
            seconds = pairs.flatten().to_numpy(zero_copy_only=False).reshape(-1, 2)
            pieces.append((name, rows, seconds))
    rows = np.concatenate([rows for _, rows, _ in pieces] or [np.array([], np.intp)])
    seconds = np.concatenate([each for *_, each in pieces] or [np.empty((0, 2))])
    codes = np.repeat(np.arange(len(pieces)), [len(rows) for _, rows, _ in pieces])
    return pd.DataFrame(
        {
            "source": table["source"].to_numpy()[rows],
            "phase": _phase(table)[rows],
            "step": table["step"].to_numpy()[rows],
            "group": pd.Categorical.from_codes(
                codes.astype(np.int16), pd.Index([name for name, *_ in pieces], dtype=object)
            ),
            "forward_s": seconds[:, 0],
            "backward_s": seconds[:, 1],
        }
    )


def _stage_times(table: pa.Table, steps: pd.DataFrame) -> pd.DataFrame:
    """One row a rank, step and virtual stage; of a stage that is one, the step's seconds."""
    keys, seconds = ["source", "phase", "step"], ["forward_s", "backward_s", "weights_s"]
    lists = table["virtual_stage_s"].to_pandas()
    has_lists = lists.str.len() > 0
    single = steps[~has_lists & steps["forward_s"].notna()][[*keys, *seconds]]
    frames = [single.assign(virtual_stage=np.int16(0))]
    if has_lists.any():
        several = lists[has_lists].explode()
        place = several.groupby(level=0).cumcount().to_numpy(np.int16)
        values = pd.DataFrame([*map(list, several)]).reindex(columns=range(3))
        values = values.set_axis(seconds, axis=1).astype(float)
        rows = steps.loc[several.index, keys].reset_index(drop=True)
        frames.append(pd.concat([rows, values], axis=1).assign(virtual_stage=place))
    times: pd.DataFrame = pd.concat(frames, ignore_index=True)
    return times


def _span_frame(table: pa.Table) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "source": table["source"].to_numpy(),
            "phase": _phase(table),
            "step": table["step"].to_numpy(),
            "name": table["name"].combine_chunks().dictionary_encode().to_pandas(),
            "microbatch": table["microbatch"].to_numpy(),
            "start_s": table["start_s"].to_numpy(),
            "end_s": table["end_s"].to_numpy(),
            "virtual_stage": pc.fill_null(table["virtual_stage"], 0).to_numpy(),
        }
    )
