"""Data frames of parsed records: steps, groups of layers, parts of a stage, spans; `source` numbers
the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gnnhpc.core.errors import InputError

PHASES = ["train", "test"]

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
    "waiting_cpu_s",
    "other_cpu_s",
    "run_delay_s",
    "threads_used",
    "recompute_s",
    "weights_s",
    "sample_s",
    "gather_s",
    "sampled_edges",
)
TIMED_PARTS = "timed_parts"
"""Of how many parts of its stage a step's record has seconds; 0 where a stage is one part."""
STEP_COLUMNS = frozenset(
    {"phase", "warmup", "looked", TIMED_PARTS, *_INTEGERS, *_SECONDS, *_OPTIONAL}
)
"""Columns of the step frame that every run has; all others are metrics."""

REPLICA_LOSS = "replica_loss"
"""The metric of a replica's own loss, before it is averaged over replicas."""
_METRIC = "metric_"
"""Before a metric's name that another column has."""

RECORD_SCHEMA = pa.schema(
    [("kind", pa.string()), ("phase", pa.string()), ("name", pa.string())]
    + [
        ("warmup", pa.bool_()),
        ("looked", pa.bool_()),
        ("microbatch", pa.float64()),
        ("end_s", pa.float64()),
    ]
    + [("part", pa.int16()), ("part_s", pa.list_(pa.list_(pa.float64())))]
    + [(name, pa.int64()) for name in _INTEGERS]
    + [(name, pa.float64()) for name in (*_SECONDS, *_OPTIONAL)]
)


def _phase(table: pa.Table) -> pd.Categorical[Any]:
    codes = pc.index_in(table["phase"], value_set=pa.array(PHASES)).to_numpy()
    return pd.Categorical.from_codes(codes.astype(np.int8), pd.Index(PHASES))


def step_frame(table: pa.Table, file_numbers: NDArray[Any]) -> pd.DataFrame:
    """The fields of step records, metrics as columns; `file_numbers` is each row's file number."""
    data: dict[str, Any] = {"source": file_numbers, "phase": _phase(table)}
    for name in (*_INTEGERS, "warmup", *_SECONDS, *_OPTIONAL):
        data[name] = table[name].to_numpy()
    # Older records do not say it.
    data["looked"] = pc.fill_null(table["looked"], False).to_numpy()
    data[TIMED_PARTS] = _lengths(table["part_s"])
    for name, values in _struct_fields(table, "metrics"):
        key = name if name not in data else f"{_METRIC}{name}"
        data[key] = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return pd.DataFrame(data)


def metric_name(column: str) -> str:
    """As the records have it, of a metric's column; that of the loss is its own."""
    plain = column.removeprefix(_METRIC)
    return plain if plain in STEP_COLUMNS | {"source"} else column


def _struct_fields(table: pa.Table, column: str) -> Iterator[tuple[str, pa.Array]]:
    """Name and values of each field of a struct column; nothing for other columns."""
    if column not in table.column_names or not pa.types.is_struct(table[column].type):
        return
    struct = table[column].combine_chunks()
    for index in range(struct.type.num_fields):
        yield struct.type.field(index).name, pc.struct_field(struct, [index])


def _flat_numbers(lists: pa.Array) -> NDArray[Any] | None:
    """The numbers in lists of them, one after another; None for anything else."""
    if not pa.types.is_list(lists.type):
        return None
    inner = lists.type.value_type
    if not (pa.types.is_floating(inner) or pa.types.is_integer(inner)):
        return None
    numbers: NDArray[Any] = lists.flatten().to_numpy(zero_copy_only=False)
    return numbers


def group_frames(
    table: pa.Table, file_numbers: NDArray[Any], paths: Sequence[Path]
) -> list[pd.DataFrame]:
    """Forward and backward seconds of each group and step: one frame, or none without groups.

    `paths` are the files by number. Raises InputError for a group that is no pair of seconds.
    """
    names: list[str] = []
    places, pairs = [], []
    for name, lists in _struct_fields(table, "groups"):
        rows = np.flatnonzero(lists.is_valid().to_numpy(zero_copy_only=False))
        if not rows.size:
            continue
        flat = _flat_numbers(lists)
        if flat is None or flat.size != 2 * rows.size:
            path = paths[int(file_numbers[rows[0]])]
            raise InputError(path, f"groups.{name}", "another form", "forward, backward seconds")
        names.append(name)
        places.append(rows)
        pairs.append(flat.reshape(-1, 2))
    if not names:
        return []
    rows, seconds = np.concatenate(places), np.concatenate(pairs)
    codes = np.repeat(np.arange(len(names), dtype=np.int16), [place.size for place in places])
    return [
        pd.DataFrame(
            {
                "source": file_numbers[rows],
                "phase": _phase(table)[rows],
                "step": table["step"].to_numpy()[rows].astype(np.int32),
                "group": pd.Categorical.from_codes(codes, pd.Index(names)),
                "forward_s": seconds[:, 0],
                "backward_s": seconds[:, 1],
            }
        )
    ]


def _lengths(lists: pa.ChunkedArray) -> NDArray[Any]:
    """Of each list; 0 of null."""
    lengths: NDArray[Any] = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return lengths.astype(np.int16)


def part_frame(
    table: pa.Table, file_numbers: NDArray[Any], paths: Sequence[Path]
) -> pd.DataFrame | None:
    """Forward and backward seconds of each part of a stage and step, in order; None without any.

    Those of weights are of the backward's, and missing where they are not apart. `paths` are the
    files by number. Raises InputError for a part that has neither two nor three seconds.
    """
    counts = _lengths(table["part_s"])
    if not counts.any():
        return None
    rows = np.repeat(np.arange(len(counts)), counts)
    of_parts = pc.list_flatten(table["part_s"])
    lengths = _lengths(of_parts)
    wrong = np.flatnonzero((lengths != 2) & (lengths != 3))
    if len(wrong):
        place = int(rows[wrong[0]])
        where = f"{paths[int(file_numbers[place])]}: {table['phase'][place]} step"
        where += f" {table['step'][place]}"
        allowed = "forward, backward seconds of each part, and weights' where they are apart"
        raise InputError(where, "part_s", "another form", allowed)
    flat = pc.list_flatten(of_parts).to_numpy()
    begin = np.cumsum(lengths, dtype=np.int64) - lengths
    weights = np.full(len(lengths), np.nan)
    weights[lengths == 3] = flat[begin[lengths == 3] + 2]
    first = np.cumsum(counts) - counts
    return pd.DataFrame(
        {
            "source": file_numbers[rows],
            "phase": _phase(table)[rows],
            "step": table["step"].to_numpy()[rows],
            "part": (np.arange(len(rows)) - first[rows]).astype(np.int16),
            "forward_s": flat[begin],
            "backward_s": flat[begin + 1],
            "weights_s": weights,
        }
    )


def span_frame(table: pa.Table, file_numbers: NDArray[Any]) -> pd.DataFrame:
    """The fields of span records; `file_numbers` is each row's file number.

    Older records know no parts of a stage: theirs are of the first.
    """
    names = table["name"].combine_chunks().dictionary_encode()
    return pd.DataFrame(
        {
            "source": file_numbers,
            "phase": _phase(table),
            "step": table["step"].to_numpy(),
            "name": names.to_pandas(),
            "microbatch": table["microbatch"].to_numpy(),
            "start_s": table["start_s"].to_numpy(),
            "end_s": table["end_s"].to_numpy(),
            "part": pc.fill_null(table["part"], 0).to_numpy(),
        }
    )


def join_frames(pieces: Iterable[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """All pieces as one frame with common categories; an empty one with `columns` for no piece."""
    frames = list(pieces)
    if not frames:
        types = {"warmup": bool, "looked": bool, **dict.fromkeys(_INTEGERS, np.int64)}
        empty = pd.DataFrame({name: pd.Series(dtype=types.get(name, float)) for name in columns})
        return empty.assign(source=np.array([], np.int32), phase=pd.Categorical([], PHASES))
    for name in ("group", "name"):
        if name in frames[0]:
            categories = sorted({c for frame in frames for c in frame[name].cat.categories})
            for frame in frames:
                frame[name] = frame[name].cat.set_categories(categories)
    return pd.concat(frames, ignore_index=True)
