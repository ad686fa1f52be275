"""Reads a custom graph from its .npz file and checks what a run relies on. Imports no torch."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.core.errors import InputError
from gnnhpc.data.edges_and_splits import Arrays, Floats, Ints, Mask, distinct, ordered_edges

UNLABELLED = -1
"""The label of a node that is in no split and has no class."""
MOST_ONE_WAY = 0.05
"""The share of edges with a reverse below which a file may list each edge of an undirected graph
once."""
FORMS = {
    "edge_index": ("iu", 2, "int [2, edges], at least one edge"),
    "x": ("fiub", 2, "numbers [nodes, features]"),
    "y": ("iu", 1, "int [nodes], classes from 0, -1 for a node outside of all splits"),
    **{f"{split}_mask": ("b", 1, "bool [nodes]") for split in SPLITS},
    "edge_weight": ("fiu", 1, "float [edges], from 0"),
}
"""Of each array numpy's letters for its kinds of numbers, its dimensions, and both in words."""


def read_custom_graph(path: Path, *, directed: bool) -> Arrays:
    """The arrays of a graph, in the form of `Arrays`; `CustomGraph` documents those of the file.

    Raises InputError for the first mistake.
    """
    arrays = _read(path)
    labels = _labels(path, arrays["y"])
    nodes = len(labels)
    if len(arrays["x"]) != nodes or arrays["x"].shape[1] == 0:
        allowed = f"one row for each of {nodes} nodes in y, at least one column"
        raise InputError(path, "x", list(arrays["x"].shape), allowed)
    found: Arrays = {"labels": labels, "dense": _float32(path, "x", arrays["x"])}
    for split in SPLITS:
        found[split] = _mask(path, f"{split}_mask", arrays, labels)
    return found | _edges(path, arrays, nodes, directed)


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of the file, each of a form in `FORMS`."""
    written = "a file written by numpy.savez"
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except OSError as error:
        raise InputError(path, None, error.strerror or str(error), written) from None
    except (zipfile.BadZipFile, ValueError, EOFError, AttributeError, TypeError) as error:
        found = f"no .npz file of plain arrays ({error})".replace("\n", " ")
        raise InputError(path, None, found, written) from None
    names = ", ".join(FORMS)
    if unknown := sorted(arrays.keys() - FORMS.keys()):
        raise InputError(path, None, f"an array {unknown[0]}", names)
    if missing := [key for key in FORMS if key not in arrays and key != "edge_weight"]:
        raise InputError(path, None, f"no {missing[0]}", f"{missing[0]}: {FORMS[missing[0]][2]}")
    for key, array in arrays.items():
        kinds, dimensions, text = FORMS[key]
        if array.dtype.kind not in kinds or array.ndim != dimensions:
            raise InputError(path, key, f"{array.dtype} {list(array.shape)}", text)
    return arrays


def _refuse(path: Path, key: str, wrong: Mask, found: str, allowed: str) -> None:
    """Raise InputError for the first place where `wrong` is true."""
    if wrong.any():
        raise InputError(path, key, f"{found} {int(wrong.argmax())}", allowed)


def _labels(path: Path, values: npt.NDArray[Any]) -> Ints:
    labels: Ints = values.astype(np.int64)
    highest = int(labels.max(initial=UNLABELLED))
    if not 1 <= highest < len(labels):
        found = f"highest label {highest} of {len(labels)} nodes"
        raise InputError(path, "y", found, "at least two classes, counted from 0")
    _refuse(path, "y", labels < UNLABELLED, "a label below -1 of node", FORMS["y"][2])
    return labels


def _float32(path: Path, key: str, array: npt.NDArray[Any]) -> Floats:
    """The array in float32; a number that does not fit becomes infinite and is refused."""
    with np.errstate(over="ignore"):
        values: Floats = array.astype(np.float32)
    wrong: Mask = (~np.isfinite(values)).reshape(len(values), -1).max(axis=1)
    _refuse(path, key, wrong, "a number that is not finite in float32, in row", "finite numbers")
    return values


def _mask(path: Path, key: str, arrays: Arrays, labels: Ints) -> Mask:
    """A split, which shares no node with another and has only nodes with a label."""
    mask: Mask = arrays[key]
    if mask.shape != labels.shape or not mask.any():
        found = f"{np.count_nonzero(mask)} of {len(mask)} nodes"
        raise InputError(path, key, found, f"at least one of {len(labels)} nodes")
    for other in (f"{split}_mask" for split in SPLITS if f"{split}_mask" != key):
        if arrays[other].shape == mask.shape:
            _refuse(path, key, mask & arrays[other], f"in {other} too, node", "one split of a node")
    _refuse(path, key, mask & (labels == UNLABELLED), "without a label, node", "nodes with one")
    return mask


def _edges(path: Path, arrays: Arrays, nodes: int, directed: bool) -> Arrays:
    """`edges` sorted by (target, source), each once, without self-loops, and `edge_weight`."""
    listed = arrays["edge_index"]
    if len(listed) != 2 or listed.shape[1] == 0:
        raise InputError(path, "edge_index", list(listed.shape), FORMS["edge_index"][2])
    source, target = listed.astype(np.int64)
    outside = (np.minimum(source, target) < 0) | (np.maximum(source, target) >= nodes)
    _refuse(path, "edge_index", outside, "another node at edge", f"nodes 0 to {nodes - 1}")
    edges = ordered_edges(source, target, nodes)
    count = edges.shape[1]
    if count == 0:
        raise InputError(path, "edge_index", "self-loops only", "at least one other edge")
    if not directed:
        _check_reverses(path, edges, nodes)
    if "edge_weight" not in arrays:
        return {"edges": edges}
    weights = _float32(path, "edge_weight", arrays["edge_weight"])
    if len(weights) != len(source):
        found = f"{len(weights)} weights of {len(source)} edges"
        raise InputError(path, "edge_weight", found, FORMS["edge_weight"][2])
    _refuse(path, "edge_weight", weights < 0, "less than 0 at edge", FORMS["edge_weight"][2])
    if count != len(source):
        found = f"{len(source) - count} self-loops or repeated edges with weights"
        raise InputError(path, "edge_index", found, "each weighted edge once, without self-loops")
    return {"edges": edges, "edge_weight": weights[np.lexsort((source, target))]}


def _check_reverses(path: Path, edges: Ints, nodes: int) -> None:
    """Raise InputError where hardly an edge has its reverse: it may be listed once."""
    source, target = edges
    count = edges.shape[1]
    pairs = distinct(np.minimum(source, target) * nodes + np.maximum(source, target))
    both = 2 * (count - len(pairs))
    if both < MOST_ONE_WAY * count:
        found = f"{count} edges, of which {both} have their reverse"
        allowed = "both directions of each edge, or directed: true in data for a directed graph"
        raise InputError(path, "edge_index", found, allowed)
