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

from analysis.load.stored_cells import RankFile, StoredCell
from gnnhpc.core.errors import InputError
from gnnhpc.records.schema import read_lines

PHASES = ["train", "test"]
_PLACE = ("cell", "attempt", "rank", "stage", "replica", "host")
"""Of a file: its cell, and what its header has."""
_INTEGERS = ("step", "epoch", "samples")
_SECONDS = (
    *("start_s", "wall_s", "cpu_s", "forward_s", "backward_s", "allreduce_s", "optimizer_s"),
    *("wait_s", "data_s", "recompute_s", "weights_s", "sample_s", "gather_s"),
    *("run_delay_s", "steal_s"),
)
_OTHERS = (
    *("loss", "grad_norm", "peak_rss_mib", "peak_device_mib", "involuntary_switches"),
    *("sampled_edges", "compilations"),
)
_FLAGS = ("warmup", "profiled")
STEP_COLUMNS = frozenset({"phase", *_FLAGS, *_INTEGERS, *_SECONDS, *_OTHERS})
"""Columns of every frame of steps; the other columns are metrics."""
REPLICA_LOSS = "replica_loss"
"""The metric of one replica's loss, before it is averaged over replicas."""
_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("kind", "phase", "name")]
    + [(name, pa.bool_()) for name in _FLAGS]
    + [(name, pa.float64()) for name in ("microbatch", "end_s")]
    + [("virtual_stage", pa.int16()), ("virtual_stage_s", pa.list_(pa.list_(pa.float64())))]
    + [(name, pa.int64()) for name in _INTEGERS]
    + [(name, pa.float64()) for name in (*_SECONDS, *_OTHERS)]
)


@dataclass
class Records:
    """The records of all cells without a damaged file, with cell, rank, stage, replica and host.

    Of a step that several attempts recorded the frames have the newest one's.
    """

    steps: pd.DataFrame
    """One row a rank and mini-batch."""
    layer_times: pd.DataFrame
    """Forward and backward seconds of each group of layers, in profiled steps."""
    stage_times: pd.DataFrame
    """Forward, backward and weight-gradient seconds of each virtual stage, where measured."""
    spans: pd.DataFrame


def read_records(cells: Sequence[StoredCell]) -> Records:
    """Read the record files of all cells; a cell gets the headers of its files, or is damaged.

    An incomplete last line is left out, as of a rank that died while writing.
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
    table = pa.concat_tables(tables, promote_options="permissive")
    of_files = pd.DataFrame(places, columns=list(_PLACE))
    of_files = of_files.astype(dict.fromkeys(("rank", "stage", "replica"), np.int16))
    of_files["cell"] = pd.Categorical(of_files["cell"], [cell.name for cell in cells])
    of_files["host"] = of_files["host"].astype("category")
    steps = table.filter(pc.equal(table["kind"], "step"))
    frame = _step_frame(steps)
    spans = _span_frame(table.filter(pc.equal(table["kind"], "span")))
    return Records(
        *(
            _newest(_placed(each, of_files))
            for each in (frame, _layer_times(steps), _stage_times(steps, frame), spans)
        )
    )


def _read_file(file: RankFile) -> tuple[Mapping[str, Any], pa.Table | None] | InputError | None:
    """The header and the table of one file; None without a header; or what is wrong with it."""
    try:
        header, body = file.read()
        if header is None:
            return None
        return header, _parse(body, file.path) if body else None
    except InputError as error:
        return error


def _placed(frame: pd.DataFrame, of_files: pd.DataFrame) -> pd.DataFrame:
    """`frame` with the place of each row's file instead of `source`."""
    source = frame["source"].to_numpy()
    data = {name: of_files[name].array[source] for name in _PLACE}
    data |= {str(name): frame[name].array for name in frame.columns if name != "source"}
    return pd.DataFrame(data, copy=False)


def _newest(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the newest attempt that recorded each step; only resumed cells have several."""
    if (rows["attempt"].groupby(rows["cell"], observed=True).nunique() > 1).any():
        step = rows.groupby(["cell", "rank", "phase", "step"], observed=True, sort=False)
        rows = rows[rows["attempt"] == step["attempt"].transform("max")]
    return rows.drop(columns="attempt")


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
        data[name] = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
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
