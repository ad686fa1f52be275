"""Reads a custom graph from its .npz file and checks every number of it. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.core.errors import InputError
from gnnhpc.data.data_files import sha256
from gnnhpc.data.readers.named_arrays import NpzFile
from gnnhpc.data.splits import DATA_SEED, Floats, Ints, Mask, Masks, shchur_split
from gnnhpc.data.synthetic.ordered_edges import Arrays, distinct, ordered_edges

UNLABELLED = -1
"""The label of a node that is in no split and has no class."""
MOST_ONE_WAY = 0.05
"""The share of edges with a reverse below which a file may list each edge of an undirected graph
once."""

_BENCHMARK = {
    "y": "labels",
    "x": "attr_matrix",
    "edge_weight": "adj_data",
    **{f"x_{part}": f"attr_{part}" for part in ("indptr", "indices", "data", "shape")},
}
"""The keys of gnn-benchmark's files for ours."""


class Choices(NamedTuple):
    """What the settings say of a file; `CustomGraph` documents them."""

    split: int
    directed: bool | None
    ignore: tuple[str, ...]
    classes: int | None


def read_sizes(path: Path, choices: Choices) -> dict[str, Any]:
    """The sizes of the graph in a file, for planning; features are not read.

    Raises InputError for a mistake in edges, weights, labels, splits, or the shape of features.
    """
    graph = _read(path, choices)
    return {
        "nodes": len(graph.arrays["labels"]),
        "edges": graph.listed_edges,
        "features": graph.features,
        "classes": graph.classes,
        "weighted": "edge_weight" in graph.arrays,
    }


def read_custom_graph(path: Path, choices: Choices, digest: str | None) -> Arrays:
    """The arrays of a planned graph.

    Raises InputError for a file of another digest, and for features that are no finite numbers.
    """
    found = sha256(path)
    if found != digest:
        allowed = f"{digest}, the file as it was planned; submit again for a new one"
        raise InputError(path, "digest", found, allowed)
    graph = _read(path, choices)
    if "x" in graph.file:
        return graph.arrays | {"dense": _finite(graph.file, "x")}
    rows = _rows(graph.file, (len(graph.arrays["labels"]), graph.features))
    return graph.arrays | rows


class _Graph(NamedTuple):
    """A graph whose edges, labels and splits are right; features are not read yet."""

    file: NpzFile
    arrays: Arrays
    listed_edges: int
    """The number of edges in the file."""
    features: int
    classes: int


def _read(path: Path, choices: Choices) -> _Graph:
    file = NpzFile(path)
    benchmark = "adj_indptr" in file and "edge_index" not in file
    if benchmark:
        file.renamed = _BENCHMARK
    labels = _labels(file)
    nodes, features = _feature_shape(file)
    if nodes != len(labels):
        key = "x" if "x" in file else "x_shape"
        raise file.error(key, f"{nodes} nodes", f"{len(labels)} nodes, as in {file.key('y')}")
    classes = _classes(file, labels, choices.classes)
    listed = any(f"{split}_{form}" in file for split in SPLITS for form in ("mask", "idx"))
    if benchmark and not listed:
        masks = shchur_split(labels, classes, np.random.default_rng([DATA_SEED, nodes]))
        masks["test"] &= labels != UNLABELLED
    else:
        masks = _masks(file, labels, choices.split)
    source, target = _benchmark_edges(file, nodes) if benchmark else _listed_edges(file, nodes)
    weights = _weights(file, len(source), choices.ignore)
    if benchmark and weights is not None and (weights == 1).all():
        weights = None
    directed = False if benchmark and choices.directed is None else choices.directed
    edges = _ordered(file, source, target, weights, nodes, directed)
    return _Graph(file, {"labels": labels, **edges, **masks}, len(source), features, classes)


def _labels(file: NpzFile) -> Ints:
    """int64 [nodes], from `y` int, or floating numbers that are whole or NaN."""
    form = "int [nodes], -1 or NaN for a node outside of all splits"
    values = file.read("y", "iuf", "12", form)
    if values.ndim == 2 and values.shape[1] != 1:
        raise file.error("y", f"{values.dtype} {list(values.shape)}", form)
    values = values.reshape(-1)
    if len(values) == 0:
        raise file.error("y", "no nodes", f"{form}, at least one node")
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), UNLABELLED, values)
    labels: Ints = values.astype(np.int64)
    wrong = (labels != values) | (labels < UNLABELLED)
    file.refuse("y", wrong, lambda node: f"label {values[node]} of node {node}", form)
    return labels


def _classes(file: NpzFile, labels: Ints, stated: int | None) -> int:
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


def _masks(file: NpzFile, labels: Ints, split: int) -> Masks:
    """bool [nodes] of each split, none empty, none with a node of another or without a label."""
    masks: Masks = {}
    for each in SPLITS:
        masked, listed = f"{each}_mask", f"{each}_idx"
        if masked in file and listed in file:
            raise file.error(listed, f"both {masked} and {listed}", "one of them")
        key, read = (listed, _mask_of_list) if listed in file else (masked, _mask)
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
            f"nodes with a class in {file.key('y')}",
        )
        masks[each] = mask
    return masks


def _mask(file: NpzFile, key: str, nodes: int, split: int) -> Mask:
    form = f"bool [{nodes}] or [{nodes}, splits], or {key.replace('mask', 'idx')}: int [n]"
    values = file.read(key, "biu", "12", form)
    columns = values.shape[1] if values.ndim == 2 else 1
    if len(values) != nodes or ((values < 0) | (values > 1)).any():
        raise file.error(key, f"{values.dtype} {list(values.shape)}", f"{form}, of 0 and 1")
    if split >= columns:
        allowed = f"split 0 to {columns - 1}" if columns > 1 else "split 0, as it has one"
        raise file.error(key, f"split {split}", allowed)
    mask: Mask = values.reshape(nodes, columns)[:, split] != 0
    return mask


def _mask_of_list(file: NpzFile, key: str, nodes: int, split: int) -> Mask:
    chosen: Ints = file.read(key, "iu", "1", "int [n], node numbers").astype(np.int64)
    wrong = (chosen < 0) | (chosen >= nodes)
    file.refuse(key, wrong, lambda place: f"node {chosen[place]}", f"0 to {nodes - 1}")
    counts = np.bincount(chosen, minlength=nodes)
    file.refuse(key, counts > 1, lambda node: f"node {node} twice", "each node once")
    if split:
        raise file.error(key, f"split {split}", "split 0 with lists of nodes")
    return counts > 0


def _listed_edges(file: NpzFile, nodes: int) -> tuple[Ints, Ints]:
    """Sources and targets as the file lists them."""
    form = "int [2, edges], at least one edge"
    edges = file.read("edge_index", "iu", "2", form)
    if edges.shape[0] != 2 or edges.shape[1] == 0:
        raise file.error("edge_index", f"{edges.dtype} {list(edges.shape)}", form)
    source, target = edges.astype(np.int64)
    file.refuse(
        "edge_index",
        (np.minimum(source, target) < 0) | (np.maximum(source, target) >= nodes),
        lambda edge: f"edge {edge} from {source[edge]} to {target[edge]}",
        f"nodes 0 to {nodes - 1}",
    )
    return source, target


def _benchmark_edges(file: NpzFile, nodes: int) -> tuple[Ints, Ints]:
    target = file.read("adj_indices", "iu", "1", "int [edges]").astype(np.int64)
    rows = _csr(file, "adj", target, np.ones(len(target), np.bool_), (nodes, nodes))
    return np.repeat(np.arange(nodes), np.diff(rows.indptr)), target


def _weights(file: NpzFile, edges: int, ignored: tuple[str, ...]) -> Floats | None:
    """float32 [edges] as the file lists them; None where it has none."""
    if "edge_attr" in file and "edge_attr" not in ignored:
        allowed = "edge_weight: float [edges], the only numbers of edges that models use; or "
        allowed += "ignore: [edge_attr]"
        raise file.error("edge_attr", "numbers that no model here uses", allowed)
    key = file.key("edge_weight")
    if "edge_weight" not in file or key in ignored:
        return None
    form = f"float [{edges}], finite numbers from 0; or ignore: [{key}]"
    values = file.read("edge_weight", "fiub", "12", form)
    weights: Floats = values.reshape(-1).astype(np.float32)
    if len(weights) != edges:
        raise file.error("edge_weight", f"{values.dtype} {list(values.shape)}", form)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    file.refuse("edge_weight", wrong, lambda edge: f"{weights[edge]} of edge {edge}", form)
    return weights


def _ordered(
    file: NpzFile,
    source: Ints,
    target: Ints,
    weights: Floats | None,
    nodes: int,
    directed: bool | None,
) -> Arrays:
    """`edges` sorted by (target, source), each once, without self-loops, and `edge_weight`."""
    key = "edge_index" if "edge_index" in file else "adj_indices"
    loops = source == target
    if loops.all():
        raise file.error(key, "self-loops only", "at least one other edge")
    if directed is None:
        _check_direction(file, key, ordered_edges(source, target, nodes), nodes)
    if weights is None:
        return {"edges": ordered_edges(source, target, nodes, both=directed is False)}
    file.refuse(
        *(key, loops & (weights != 1)),
        lambda edge: f"weight {weights[edge]} of the self-loop of node {source[edge]}",
        f"1, or no self-loops: layers add their own; or ignore: [{file.key('edge_weight')}]",
    )
    codes, kept = (target * nodes + source)[~loops], weights[~loops]
    if directed is False:
        codes = np.concatenate((codes, (source * nodes + target)[~loops]))
        kept = np.concatenate((kept, kept))
    order = np.argsort(codes, kind="stable")
    codes, kept = codes[order], kept[order]
    again = np.diff(codes, prepend=-1) == 0
    file.refuse(
        *(key, again & (kept != np.roll(kept, 1))),
        lambda e: f"two weights of the edge from {codes[e] % nodes} to {codes[e] // nodes}",
        f"one weight for each edge; or ignore: [{file.key('edge_weight')}]",
    )
    codes = codes[~again]
    return {"edges": np.stack((codes % nodes, codes // nodes)), "edge_weight": kept[~again]}


def _check_direction(file: NpzFile, key: str, edges: Ints, nodes: int) -> None:
    """Raise InputError where hardly an edge has its reverse: it may be listed once."""
    source, target = edges
    count = edges.shape[1]
    pairs = distinct(np.minimum(source, target) * nodes + np.maximum(source, target))
    both = 2 * (count - len(pairs))
    if both < MOST_ONE_WAY * count:
        found = f"{count} edges, of which {both} have their reverse"
        allowed = "directed: true in data for a directed graph, directed: false to add reverses"
        raise file.error(key, found, allowed)


def _feature_shape(file: NpzFile) -> tuple[int, int]:
    """Nodes and columns, of dense rows or of CSR."""
    parts = ("x_indptr", "x_indices", "x_data", "x_shape")
    known = [key for key in parts if key in file]
    if "x" in file and known:
        found = f"both {file.key('x')} and {file.key(known[0])}"
        raise file.error(known[0], found, "one form of features")
    if known:
        key, form = "x_shape", "int [2]: nodes, features"
        shape = file.read(key, "iu", "1", form).tolist()
        if len(shape) != 2 or min(shape) < 0:
            raise file.error(key, shape, form)
    else:
        key, form = "x", f"numbers [nodes, features], or {', '.join(map(file.key, parts))}"
        shape = file.shape(key, "fiub", "2", form)
    if shape[1] == 0:
        raise file.error(key, "no features", "at least one column")
    return shape[0], shape[1]


def _finite(file: NpzFile, key: str) -> Floats:
    """An array in float32; a number that does not fit becomes infinite and is refused."""
    with np.errstate(over="ignore"):
        values: Floats = file.read(key, "fiub", "12", "numbers [n]").astype(np.float32)
    width = values.shape[-1] if values.ndim == 2 else 1

    def found(place: int) -> str:
        node = f"node {place // width}, column {place % width}"
        return f"{values.flat[place]} at {node if values.ndim == 2 else place}"

    file.refuse(key, ~np.isfinite(values), found, "finite float32 numbers")
    return values


def _rows(file: NpzFile, shape: tuple[int, int]) -> Arrays:
    """CSR with columns sorted within each row, as torch needs it."""
    columns = file.read("x_indices", "iu", "1", "int [n]").astype(np.int64)
    rows = _csr(file, "x", columns, _finite(file, "x_data"), shape)
    rows.sort_indices()
    if not rows.has_canonical_format:
        raise file.error("x_indices", "a column twice in a row", "each column once a row")
    indptr, columns = rows.indptr.astype(np.int64), rows.indices.astype(np.int64)
    return {"indptr": indptr, "columns": columns, "values": rows.data}


def _csr(file: NpzFile, start: str, columns: Ints, values: Any, shape: tuple[int, int]) -> Any:
    """The matrix of CSR's parts; raises InputError where they do not fit together."""
    key = f"{start}_indptr"
    indptr = file.read(key, "iu", "1", f"int [{shape[0] + 1}]").astype(np.int64)
    try:
        rows = scipy.sparse.csr_array((values, columns, indptr), shape=shape)
        rows.check_format(full_check=True)
        if indptr[-1] != len(columns):
            raise ValueError(f"it ends with {indptr[-1]} for {len(columns)} numbers")
    except ValueError as error:
        allowed = f"CSR of {shape[0]} rows and {shape[1]} columns"
        raise file.error(key, f"parts that do not fit ({error})", allowed) from None
    return rows
