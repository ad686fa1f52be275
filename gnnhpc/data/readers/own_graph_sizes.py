"""What planning asks of a user's own graph: types, shapes, labels and split. Free of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.core.errors import InputError
from gnnhpc.data.readers.npz_file import Header, NpzFile

CSR_KEYS = ("x_indptr", "x_indices", "x_data", "x_shape")
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_EDGES = "int [2, edges]"
_DENSE = "float [nodes, features]"
_LABELS = "int [nodes]"
_CSR = {
    "x_indptr": "int [nodes + 1]",
    "x_indices": "int [n]",
    "x_data": "float [n]",
    "x_shape": "int [2]: nodes, features",
}


class Sizes(NamedTuple):
    nodes: int
    edges: int
    features: int
    classes: int


class CheckedGraph(NamedTuple):
    """A graph whose headers, labels and split are right; edges and features are not read yet."""

    file: NpzFile
    sizes: Sizes
    labels: Ints
    masks: dict[str, Mask]


def check_graph(path: Path, classes: int | None = None) -> CheckedGraph:
    """The graph in this file; `classes` where the user says how many there are.

    Raises InputError for a mistake in what is read.
    """
    file = NpzFile(path)
    edges = _checked(file, "edge_index", "iu", 2, _EDGES)
    if edges.shape[0] != 2 or edges.shape[1] == 0:
        raise InputError(path, "edge_index", edges, f"{_EDGES}, at least one edge")
    labels = _read_labels(file, classes)
    nodes, features = _feature_shape(file)
    if nodes != len(labels):
        key = "x_shape" if "x_shape" in file else "x"
        raise InputError(path, key, f"{nodes} nodes", f"{len(labels)} nodes, as in y")
    sizes = Sizes(nodes, edges.shape[1], features, classes or int(labels.max()) + 1)
    return CheckedGraph(file, sizes, labels, _read_masks(file, nodes))


def _read_labels(file: NpzFile, classes: int | None) -> Ints:
    """int64 [nodes] from 0; raises InputError for a label that is no class."""
    if _checked(file, "y", "iu", 1, _LABELS).shape[0] == 0:
        raise InputError(file.path, "y", "no nodes", f"{_LABELS}, at least one node")
    labels: Ints = file.array("y").astype(np.int64)
    most = "the classes, counted from 0" if classes is None else f"0 to {classes - 1}"
    wrong = np.flatnonzero((labels < 0) | (labels >= (classes or labels.max() + 1)))
    if len(wrong):
        found = f"label {labels[wrong[0]]} of node {wrong[0]}"
        raise InputError(file.path, "y", found, most)
    if classes is None and labels.max() == 0:
        raise InputError(file.path, "y", "one class", "at least two")
    if labels.max() >= len(labels):
        found = f"label {labels.max()} among {len(labels)} nodes"
        raise InputError(file.path, "y", found, "the classes, counted from 0 without large gaps")
    return labels


def _read_masks(file: NpzFile, nodes: int) -> dict[str, Mask]:
    """bool [nodes] of each split; raises InputError for empty ones and those that overlap."""
    masks: dict[str, Mask] = {}
    for split in SPLITS:
        key, mask = _read_mask(file, split, nodes)
        if not mask.any():
            raise InputError(file.path, key, "no node", "at least one node")
        for other, earlier in masks.items():
            both = np.flatnonzero(mask & earlier)
            if len(both):
                found = f"node {both[0]}, which is in {other} too"
                raise InputError(file.path, key, found, "splits that share no node")
        masks[split] = mask
    return masks


def _read_mask(file: NpzFile, split: str, nodes: int) -> tuple[str, Mask]:
    """The key that the file has, and what it says."""
    key, listed = f"{split}_mask", f"{split}_idx"
    if key in file and listed in file:
        raise InputError(file.path, listed, f"both {key} and {listed}", "one of them")
    if listed in file:
        return listed, _mask_of(file, listed, nodes)
    form = f"bool [{nodes}]"
    header = file.header(key, f"{form}, or {listed}")
    if header.dtype != np.bool_ or header.shape != (nodes,):
        raise InputError(file.path, key, header, form)
    mask: Mask = file.array(key)
    return key, mask


def _mask_of(file: NpzFile, key: str, nodes: int) -> Mask:
    _checked(file, key, "iu", 1, "int [n], node numbers")
    chosen: Ints = file.array(key).astype(np.int64)
    wrong = chosen[(chosen < 0) | (chosen >= nodes)]
    if len(wrong):
        raise InputError(file.path, key, f"node {wrong[0]}", f"0 to {nodes - 1}")
    counts = np.bincount(chosen, minlength=nodes)
    if counts.max() > 1:
        raise InputError(file.path, key, f"node {counts.argmax()} twice", "each node once")
    return counts > 0


def _feature_shape(file: NpzFile) -> tuple[int, int]:
    """Nodes and columns, of dense rows or of CSR."""
    parts = [key for key in CSR_KEYS if key in file]
    if "x" in file and parts:
        raise InputError(file.path, parts[0], f"both x and {parts[0]}", "x, or the four of CSR")
    if not parts:
        allowed = f"{_DENSE}, or {', '.join(CSR_KEYS)}"
        header = _checked(file, "x", "f", 2, allowed)
        return _at_least_one_column(file, "x", header.shape[0], header.shape[1])
    indptr, indices, values, _ = (
        _checked(file, key, "f" if key == "x_data" else "iu", 1, _CSR[key]) for key in CSR_KEYS
    )
    shape: Any = file.array("x_shape").tolist()
    if len(shape) != 2 or min(shape) < 0:
        raise InputError(file.path, "x_shape", shape, _CSR["x_shape"])
    rows, columns = shape
    if indptr.shape != (rows + 1,):
        raise InputError(file.path, "x_indptr", indptr, f"int [{rows + 1}], one more than nodes")
    if indices.shape != values.shape:
        found = f"{values.shape[0]} for {indices.shape[0]} x_indices"
        raise InputError(file.path, "x_data", found, "as many")
    return _at_least_one_column(file, "x_shape", rows, columns)


def _at_least_one_column(file: NpzFile, key: str, rows: int, columns: int) -> tuple[int, int]:
    if columns == 0:
        raise InputError(file.path, key, "no features", "at least one column")
    return rows, columns


def _checked(file: NpzFile, key: str, kinds: str, dimensions: int, allowed: str) -> Header:
    """The header of an array of these kinds of numbers and this many dimensions."""
    header = file.header(key, allowed)
    if header.dtype.kind not in kinds or len(header.shape) != dimensions:
        raise InputError(file.path, key, header, allowed)
    return header
