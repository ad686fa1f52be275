"""OGB's folders of node property prediction (Hu et al. 2020), without its package or torch.

`raw/` holds one gzipped table a file without a header: `edge` (source, target), `node-feat`,
`node-label`, `num-node-list` and `num-edge-list`; `split/<kind>/` holds node numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnhpc.core.errors import InputError
from gnnhpc.data.cache import Arrays
from gnnhpc.data.generators import Mask, mask_of
from gnnhpc.data.published import PublishedGraph
from gnnhpc.data.readers.arrays import Ints, check_sizes, ordered_edges

_PARTS = {"train": "train", "val": "valid", "test": "test"}
_FETCH_AGAIN = "the table as published; fetch it again"


def read_ogb(config: PublishedGraph, raw: list[Path]) -> Arrays:
    """The arrays of a graph, as `read_pyg` gives them, with both directions of every edge.

    Raises InputError naming a table that is damaged or of another size than the others say.
    """
    tables = {path.name.removesuffix(".csv.gz"): path for path in raw}
    labels = _numbers(tables["node-label"], 1)[:, 0]
    nodes, (source, target) = len(labels), _numbers(tables["edge"], 2).T
    _check_count(tables["num-node-list"], nodes, tables["node-label"])
    _check_count(tables["num-edge-list"], len(source), tables["edge"])
    _check_ends(tables["edge"], source, target, nodes)
    sources, targets = np.concatenate([source, target]), np.concatenate([target, source])
    arrays: Arrays = {"labels": labels, "edges": ordered_edges(sources, targets, nodes)}
    arrays |= {key: _mask(tables[part], nodes) for key, part in _PARTS.items()}
    if config.features == "real":
        arrays["dense"] = _table(tables["node-feat"], np.float32)
    check_sizes(config, arrays, tables["edge"].parent)
    return arrays


def _mask(path: Path, nodes: int) -> Mask:
    chosen = _numbers(path, 1)[:, 0]
    if len(chosen) == 0 or chosen.min() < 0 or chosen.max() >= nodes:
        raise InputError(path, None, "node numbers that are none", f"0 to {nodes - 1}")
    return mask_of(chosen, nodes)


def _check_count(path: Path, found: int, counted: Path) -> None:
    """Each list holds one number, as there is one graph."""
    told = _numbers(path, 1).ravel().tolist()
    if told != [found]:
        raise InputError(counted, None, f"{found} lines", f"{told} as {path.name} says")


def _check_ends(path: Path, source: Ints, target: Ints, nodes: int) -> None:
    ends = np.concatenate([source, target])
    if len(ends) == 0 or ends.min() < 0 or ends.max() >= nodes:
        found = f"{ends.min()} to {ends.max()}" if len(ends) else "no edges"
        raise InputError(path, None, found, f"edges between nodes 0 to {nodes - 1}")


def _numbers(path: Path, columns: int) -> Ints:
    table: Ints = _table(path, np.int64)
    if table.shape[1] != columns:
        raise InputError(path, None, f"{table.shape[1]} columns", f"{columns}; {_FETCH_AGAIN}")
    return table


def _table(path: Path, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """All numbers of a file, [lines, columns]."""
    # pandas reads a gigabyte of text in a minute, numpy in an hour.
    import pandas as pd

    try:
        frame = pd.read_csv(path, header=None, dtype=dtype, compression="gzip")
    except Exception as error:
        # A damaged archive can fail anywhere in zlib or pandas.
        reason = f"a damaged file ({type(error).__name__}: {error})"
        raise InputError(path, None, reason, _FETCH_AGAIN) from None
    return np.ascontiguousarray(frame.to_numpy())
