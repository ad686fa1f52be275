"""A user's own graph as arrays, every number of it checked. Free of torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnhpc.core.errors import InputError
from gnnhpc.data.cache import Arrays
from gnnhpc.data.files import sha256
from gnnhpc.data.readers.arrays import ordered_edges
from gnnhpc.data.readers.npz_file import NpzFile
from gnnhpc.data.readers.own_graph_sizes import Ints, check_graph

Floats = npt.NDArray[np.float32]


def read_own_graph(path: Path, digest: str | None, classes: int | None) -> Arrays:
    """The arrays of the graph in a file, as `read_pyg` gives those of a published one.

    Raises InputError for a file of another digest, edges that end at no node, and features that
    are no finite numbers.
    """
    found = sha256(path)
    if found != digest:
        allowed = f"{digest}, the file as it was planned; submit again for a new one"
        raise InputError(path, "digest", found, allowed)
    file, sizes, labels, masks = check_graph(path, classes)
    arrays: Arrays = {"labels": labels, "edges": _edges(file, sizes.nodes), **masks}
    arrays |= {"dense": _dense(file)} if "x" in file else _rows(file, sizes.nodes, sizes.features)
    return arrays


def _edges(file: NpzFile, nodes: int) -> Ints:
    """Sorted by (target, source), each once, without self-loops."""
    edges = file.array("edge_index")
    wrong = np.flatnonzero(((edges < 0) | (edges >= nodes)).any(0))
    if len(wrong):
        source, target = edges[:, wrong[0]]
        found = f"edge {wrong[0]} from {source} to {target}"
        raise InputError(file.path, "edge_index", found, f"nodes 0 to {nodes - 1}")
    source, target = edges.astype(np.int64)
    ordered = ordered_edges(source, target, nodes)
    if not ordered.size:
        raise InputError(file.path, "edge_index", "self-loops only", "at least one other edge")
    return ordered


def _dense(file: NpzFile) -> Floats:
    rows = _float32(file, "x")
    wrong = np.flatnonzero(~np.isfinite(rows).all(1))
    if len(wrong):
        column = int(np.flatnonzero(~np.isfinite(rows[wrong[0]]))[0])
        found = f"{rows[wrong[0], column]} at node {wrong[0]}, column {column}"
        raise InputError(file.path, "x", found, "finite float32 numbers")
    return rows


def _float32(file: NpzFile, key: str) -> Floats:
    """What does not fit into float32 becomes infinite, which is no finite number."""
    with np.errstate(over="ignore"):
        found: Floats = file.array(key).astype(np.float32)
        return found


def _rows(file: NpzFile, nodes: int, columns: int) -> Arrays:
    """CSR with columns sorted within each row, as torch wants it."""
    indptr, chosen = (file.array(key).astype(np.int64) for key in ("x_indptr", "x_indices"))
    values = _float32(file, "x_data")
    if indptr[0] != 0 or indptr[-1] != len(chosen) or (np.diff(indptr) < 0).any():
        found = f"{indptr[0]} to {indptr[-1]}"
        allowed = f"0 to {len(chosen)}, never falling"
        raise InputError(file.path, "x_indptr", found, allowed)
    wrong = chosen[(chosen < 0) | (chosen >= columns)]
    if len(wrong):
        raise InputError(file.path, "x_indices", f"column {wrong[0]}", f"0 to {columns - 1}")
    if not np.isfinite(values).all():
        position = int(np.flatnonzero(~np.isfinite(values))[0])
        found = f"{values[position]} at {position}"
        raise InputError(file.path, "x_data", found, "finite float32 numbers")
    row = np.repeat(np.arange(nodes), np.diff(indptr))
    order = np.lexsort((chosen, row))
    chosen, values = chosen[order], values[order]
    twice = np.flatnonzero((np.diff(row) == 0) & (np.diff(chosen) == 0))
    if len(twice):
        found = f"column {chosen[twice[0]]} twice in row {row[twice[0]]}"
        raise InputError(file.path, "x_indices", found, "each column once a row")
    return {"indptr": indptr, "columns": chosen, "values": values}
