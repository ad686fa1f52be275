"""Reads a custom graph from its .npz file and checks every number of it. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.data.readers.named_arrays import FORMS, NamedArrays
from gnnhpc.data.splits import DATA_SEED, Floats, Ints, Mask, Masks, shchur_split
from gnnhpc.data.synthetic.ordered_edges import Arrays, distinct, ordered_edges

UNLABELLED = -1
"""The label of a node that is in no split and has no class."""
MOST_ONE_WAY = 0.05
"""The share of edges with a reverse below which a file may list each edge of an undirected graph
once."""


class CustomArrays(NamedTuple):
    """The arrays of a graph, and the sizes that planning needs."""

    arrays: Arrays
    edges: int
    """The number of edges in the file."""
    features: int
    classes: int


def read_custom_graph(
    path: Path,
    *,
    split: int,
    directed: bool | None,
    ignore: tuple[str, ...],
    classes: int | None,
) -> CustomArrays:
    """The graph in a file; `CustomGraph` documents the arrays and the settings.

    Raises InputError for the first mistake.
    """
    file = NamedArrays(path)
    labels = _labels(file)
    classes = _classes(file, labels, classes)
    features, columns = _features(file, len(labels))
    masks = _masks(file, labels, classes, split)
    edges, listed = _edges(file, len(labels), directed, ignore)
    return CustomArrays({"labels": labels, **edges, **masks, **features}, listed, columns, classes)


def _labels(file: NamedArrays) -> Ints:
    """int64 [nodes], from `y` int, or floating numbers that are whole or NaN."""
    values, form = file["y"], FORMS["y"].text
    if values.ndim == 2 and values.shape[1] != 1:
        raise file.wrong_form("y", values)
    values = values.reshape(-1)
    if len(values) == 0:
        raise file.error("y", "no nodes", f"{form}, at least one node")
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), UNLABELLED, values)
    labels: Ints = values.astype(np.int64)
    wrong = (labels != values) | (labels < UNLABELLED)
    file.refuse("y", wrong, lambda node: f"label {values[node]} of node {node}", form)
    return labels


def _classes(file: NamedArrays, labels: Ints, stated: int | None) -> int:
    highest = int(labels.max())
    if stated is not None and highest >= stated:
        found = f"label {highest} of node {labels.argmax()}"
        raise file.error("y", found, f"0 to {stated - 1}, as classes in the spec says")
    if stated is None and highest < 1:
        raise file.error("y", "no label" if highest < 0 else "one class", "at least two classes")
    if highest >= len(labels):
        found = f"label {highest} among {len(labels)} nodes"
        raise file.error("y", found, "the classes, counted from 0 without large gaps")
    return stated or highest + 1


def _masks(file: NamedArrays, labels: Ints, classes: int, split: int) -> Masks:
    """bool [nodes] of each split, none empty, none with a node of another or without a label."""
    listed = any(f"{each}_{form}" in file for each in SPLITS for form in ("mask", "idx"))
    if file.is_gnn_benchmark and not listed:
        masks = shchur_split(labels, classes, np.random.default_rng([DATA_SEED, len(labels)]))
        masks["test"] &= labels != UNLABELLED
        return masks
    masks = {}
    for each in SPLITS:
        masked, listed_key = f"{each}_mask", f"{each}_idx"
        if masked in file and listed_key in file:
            raise file.error(listed_key, f"both {masked} and {listed_key}", "one of them")
        key, read = (listed_key, _mask_of_list) if listed_key in file else (masked, _mask)
        mask = read(file, key, len(labels), split)
        if not mask.any():
            raise file.error(key, "no node", "at least one node")
        for other, earlier in masks.items():
            twice = f"which is in {other} too"
            file.refuse(
                *(key, mask & earlier, lambda node, why=twice: f"node {node}, {why}"),
                "splits that share no node",
            )
        file.refuse(
            *(key, mask & (labels == UNLABELLED), lambda node: f"node {node}, which has no label"),
            "nodes with a class in y",
        )
        masks[each] = mask
    return masks


def _mask(file: NamedArrays, key: str, nodes: int, split: int) -> Mask:
    values = file[key]
    columns = values.shape[1] if values.ndim == 2 else 1
    if len(values) != nodes or ((values < 0) | (values > 1)).any():
        found = f"{values.dtype} {list(values.shape)}"
        raise file.error(key, found, f"{FORMS[key].text}, of 0 and 1 for {nodes} nodes")
    if split >= columns:
        allowed = f"split 0 to {columns - 1}" if columns > 1 else "split 0, as it has one"
        raise file.error(key, f"split {split}", allowed)
    mask: Mask = values.reshape(nodes, columns)[:, split] != 0
    return mask


def _mask_of_list(file: NamedArrays, key: str, nodes: int, split: int) -> Mask:
    chosen: Ints = file[key].astype(np.int64)
    wrong = (chosen < 0) | (chosen >= nodes)
    file.refuse(key, wrong, lambda place: f"node {chosen[place]}", f"0 to {nodes - 1}")
    counts = np.bincount(chosen, minlength=nodes)
    file.refuse(key, counts > 1, lambda node: f"node {node} twice", "each node once")
    if split:
        raise file.error(key, f"split {split}", "split 0 with lists of nodes")
    return counts > 0


def _edges(
    file: NamedArrays, nodes: int, directed: bool | None, ignore: tuple[str, ...]
) -> tuple[Arrays, int]:
    """`edges` sorted by (target, source), each once, without self-loops, and `edge_weight`; also
    how many the file lists."""
    source, target = (_benchmark_ends if file.is_gnn_benchmark else _listed_ends)(file, nodes)
    weights = _weights(file, len(source), ignore)
    if file.is_gnn_benchmark:
        directed = bool(directed)
        weights = None if weights is None or (weights == 1).all() else weights
    loops = source == target
    if loops.all():
        raise file.error("edge_index", "self-loops only", "at least one other edge")
    if directed is None:
        _check_direction(file, ordered_edges(source, target, nodes), nodes)
    if weights is None:
        edges = ordered_edges(source, target, nodes, both=directed is False)
        return {"edges": edges}, len(source)
    file.refuse(
        *("edge_index", loops & (weights != 1)),
        lambda edge: f"weight {weights[edge]} of the self-loop of node {source[edge]}",
        "1, or no self-loops: layers add their own; or ignore: [edge_weight]",
    )
    codes, kept = (target * nodes + source)[~loops], weights[~loops]
    if directed is False:
        codes = np.concatenate((codes, (source * nodes + target)[~loops]))
        kept = np.concatenate((kept, kept))
    order = np.argsort(codes, kind="stable")
    codes, kept = codes[order], kept[order]
    again = np.diff(codes, prepend=-1) == 0
    file.refuse(
        *("edge_index", again & (kept != np.roll(kept, 1))),
        lambda e: f"two weights of the edge from {codes[e] % nodes} to {codes[e] // nodes}",
        "one weight for each edge; or ignore: [edge_weight]",
    )
    codes = codes[~again]
    edges = np.stack((codes % nodes, codes // nodes))
    return {"edges": edges, "edge_weight": kept[~again]}, len(source)


def _listed_ends(file: NamedArrays, nodes: int) -> tuple[Ints, Ints]:
    """Sources and targets as the file lists them."""
    edges = file["edge_index"]
    if edges.shape[0] != 2 or edges.shape[1] == 0:
        raise file.wrong_form("edge_index", edges)
    source, target = edges.astype(np.int64)
    file.refuse(
        "edge_index",
        (np.minimum(source, target) < 0) | (np.maximum(source, target) >= nodes),
        lambda edge: f"edge {edge} from {source[edge]} to {target[edge]}",
        f"nodes 0 to {nodes - 1}",
    )
    return source, target


def _benchmark_ends(file: NamedArrays, nodes: int) -> tuple[Ints, Ints]:
    target = file["adj_indices"].astype(np.int64)
    rows = _csr(file, "adj_indptr", target, np.ones(len(target), np.bool_), (nodes, nodes))
    return np.repeat(np.arange(nodes), np.diff(rows.indptr)), target


def _weights(file: NamedArrays, edges: int, ignored: tuple[str, ...]) -> Floats | None:
    """float32 [edges] as the file lists them; None where it has none."""
    if "edge_attr" in file and "edge_attr" not in ignored:
        allowed = "edge_weight: float [edges], the only numbers of edges that models use; or "
        allowed += "ignore: [edge_attr]"
        raise file.error("edge_attr", "numbers that no model here uses", allowed)
    if "edge_weight" not in file or "edge_weight" in ignored:
        return None
    values = file["edge_weight"]
    weights: Floats = values.reshape(-1).astype(np.float32)
    if len(weights) != edges:
        raise file.wrong_form("edge_weight", values)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    form = FORMS["edge_weight"].text
    file.refuse("edge_weight", wrong, lambda edge: f"{weights[edge]} of edge {edge}", form)
    return weights


def _check_direction(file: NamedArrays, edges: Ints, nodes: int) -> None:
    """Raise InputError where hardly an edge has its reverse: it may be listed once."""
    source, target = edges
    count = edges.shape[1]
    pairs = distinct(np.minimum(source, target) * nodes + np.maximum(source, target))
    both = 2 * (count - len(pairs))
    if both < MOST_ONE_WAY * count:
        found = f"{count} edges, of which {both} have their reverse"
        allowed = "directed: true in data for a directed graph, directed: false to add reverses"
        raise file.error("edge_index", found, allowed)


def _features(file: NamedArrays, nodes: int) -> tuple[Arrays, int]:
    """`dense` [nodes, columns] or CSR rows, and how many columns they have."""
    parts = [key for key in ("x_indptr", "x_indices", "x_data", "x_shape") if key in file]
    if "x" in file and parts:
        raise file.error(parts[0], f"both x and {parts[0]}", "one form of features")
    key = "x_shape" if parts else "x"
    values = file[key]
    shape = values.tolist() if parts else list(values.shape)
    if len(shape) != 2 or min(shape) < 0:
        raise file.error(key, shape, FORMS[key].text)
    if shape[1] == 0:
        raise file.error(key, "no features", "at least one column")
    if shape[0] != nodes:
        raise file.error(key, f"{shape[0]} nodes", f"{nodes} nodes, as in y")
    if parts:
        return _rows(file, (nodes, shape[1])), shape[1]
    return {"dense": _finite(file, key, values)}, shape[1]


def _finite(file: NamedArrays, key: str, array: npt.NDArray[Any]) -> Floats:
    """An array in float32; a number that does not fit becomes infinite and is refused."""
    with np.errstate(over="ignore"):
        values: Floats = array.astype(np.float32)
    width = values.shape[-1] if values.ndim == 2 else 1

    def found(place: int) -> str:
        node = f"node {place // width}, column {place % width}"
        return f"{values.flat[place]} at {node if values.ndim == 2 else place}"

    file.refuse(key, ~np.isfinite(values), found, "finite float32 numbers")
    return values


def _rows(file: NamedArrays, shape: tuple[int, int]) -> Arrays:
    """CSR with columns sorted within each row, as torch needs it."""
    columns = file["x_indices"].astype(np.int64)
    rows = _csr(file, "x_indptr", columns, _finite(file, "x_data", file["x_data"]), shape)
    rows.sort_indices()
    if not rows.has_canonical_format:
        raise file.error("x_indices", "a column twice in a row", "each column once a row")
    indptr, columns = rows.indptr.astype(np.int64), rows.indices.astype(np.int64)
    return {"indptr": indptr, "columns": columns, "values": rows.data}


def _csr(file: NamedArrays, key: str, columns: Ints, values: Any, shape: tuple[int, int]) -> Any:
    """The matrix of CSR's parts; raises InputError where they do not fit together."""
    indptr = file[key].astype(np.int64)
    try:
        rows = scipy.sparse.csr_array((values, columns, indptr), shape=shape)
        rows.check_format(full_check=True)
        if indptr[-1] != len(columns):
            raise ValueError(f"it ends with {indptr[-1]} for {len(columns)} numbers")
    except ValueError as error:
        allowed = f"CSR of {shape[0]} rows and {shape[1]} columns"
        raise file.error(key, f"parts that do not fit ({error})", allowed) from None
    return rows
