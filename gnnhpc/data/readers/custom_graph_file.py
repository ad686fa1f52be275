"""Reads a custom graph from its .npz file and checks every number of it. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.core.errors import InputError
from gnnhpc.data.data_cache import Arrays
from gnnhpc.data.data_files import sha256
from gnnhpc.data.readers.npz_file import NpzFile
from gnnhpc.data.splits import DATA_SEED, Floats, Ints, Mask, distinct, shchur_split

UNLABELLED = -1
"""The label of a node that is in no split and has no class."""
MOST_ONE_WAY = 0.05
"""The share of edges with a reverse below which a file may list each edge of an undirected graph
once."""

_BENCHMARK = {
    "y": "labels",
    "x": "attr_matrix",
    "x_indptr": "attr_indptr",
    "x_indices": "attr_indices",
    "x_data": "attr_data",
    "x_shape": "attr_shape",
}
"""The keys of gnn-benchmark's files for ours."""
_CSR = ("x_indptr", "x_indices", "x_data", "x_shape")


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
    graph = _Graph.read(path, choices)
    return {
        "nodes": len(graph.labels),
        "edges": graph.listed_edges,
        "features": graph.features,
        "classes": graph.classes,
        "weighted": graph.weights is not None,
    }


def read_custom_graph(path: Path, choices: Choices, digest: str | None) -> Arrays:
    """The arrays of a planned graph, as those of a published one, with `edge_weight` float32 [E].

    Raises InputError for a file of another digest, and for features that are no finite numbers.
    """
    found = sha256(path)
    if found != digest:
        allowed = f"{digest}, the file as it was planned; submit again for a new one"
        raise InputError(path, "digest", found, allowed)
    graph = _Graph.read(path, choices)
    arrays: Arrays = {"labels": graph.labels, "edges": graph.edges, **graph.masks}
    if graph.weights is not None:
        arrays["edge_weight"] = graph.weights
    if "x" in graph.file:
        return arrays | {"dense": _finite(graph.file, "x")}
    return arrays | _rows(graph.file, len(graph.labels), graph.features)


@dataclass(frozen=True)
class _Graph:
    """A graph whose edges, labels and splits are right; features are not read yet."""

    file: NpzFile
    labels: Ints
    """int64 [nodes], `UNLABELLED` where a node has no class."""
    masks: dict[str, Mask]
    edges: Ints
    """int64 [2, E], sorted by (target, source), each once, without self-loops."""
    weights: Floats | None
    listed_edges: int
    """The number of edges in the file."""
    features: int
    classes: int

    @classmethod
    def read(cls, path: Path, choices: Choices) -> _Graph:
        file = NpzFile(path)
        if _is_benchmark(file):
            file.renamed = _BENCHMARK
        labels = _labels(file)
        nodes, features = _feature_shape(file)
        if nodes != len(labels):
            key = "x" if "x" in file else "x_shape"
            raise file.error(key, f"{nodes} nodes", f"{len(labels)} nodes, as in {file.key('y')}")
        classes = _classes(file, labels, choices.classes)
        masks = _masks(file, labels, classes, choices.split)
        source, target, key = _listed_edges(file, nodes)
        listed = _weights(file, len(source), choices.ignore)
        ends = (source, target)
        edges, weights = _ordered(file, key, ends, listed, nodes, choices.directed)
        return cls(file, labels, masks, edges, weights, len(source), features, classes)


def _is_benchmark(file: NpzFile) -> bool:
    return "adj_indptr" in file.keys and "edge_index" not in file.keys


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
    wrong = np.flatnonzero((labels != values) | (labels < UNLABELLED))
    if len(wrong):
        raise file.error("y", f"label {values[wrong[0]]} of node {wrong[0]}", form)
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


def _masks(file: NpzFile, labels: Ints, classes: int, split: int) -> dict[str, Mask]:
    """bool [nodes] of each split, none empty, none with a node of another or without a label."""
    names = [(each, f"{each}_mask", f"{each}_idx") for each in SPLITS]
    if _is_benchmark(file) and not any(key in file for _, *keys in names for key in keys):
        rng = np.random.default_rng([DATA_SEED, len(labels)])
        train, val, test = shchur_split(labels, classes, rng)
        return {"train": train, "val": val, "test": test & (labels != UNLABELLED)}
    masks: dict[str, Mask] = {}
    for each, masked, listed in names:
        if masked in file and listed in file:
            raise file.error(listed, f"both {masked} and {listed}", "one of them")
        key = listed if listed in file else masked
        read = _mask_of_list if listed in file else _mask
        masks[each] = mask = read(file, key, len(labels), split)
        if not mask.any():
            raise file.error(key, "no node", "at least one node")
        for other, earlier in masks.items():
            both = np.flatnonzero(mask & earlier)
            if other != each and len(both):
                found = f"node {both[0]}, which is in {other} too"
                raise file.error(key, found, "splits that share no node")
        without = np.flatnonzero(mask & (labels == UNLABELLED))
        if len(without):
            found = f"node {without[0]}, which has no label"
            raise file.error(key, found, f"nodes with a class in {file.key('y')}")
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
    wrong = chosen[(chosen < 0) | (chosen >= nodes)]
    if len(wrong):
        raise file.error(key, f"node {wrong[0]}", f"0 to {nodes - 1}")
    counts = np.bincount(chosen, minlength=nodes)
    if counts.max() > 1:
        raise file.error(key, f"node {counts.argmax()} twice", "each node once")
    if split:
        raise file.error(key, f"split {split}", "split 0 with lists of nodes")
    return counts > 0


def _listed_edges(file: NpzFile, nodes: int) -> tuple[Ints, Ints, str]:
    """Sources and targets as the file lists them, and the key of the array that does."""
    if _is_benchmark(file):
        indptr = _offsets(file, "adj_indptr", nodes, "adj_indices")
        key = "adj_indices"
        target: Ints = file.read(key, "iu", "1", "int [edges]").astype(np.int64)
        source = np.repeat(np.arange(nodes), np.diff(indptr))
    else:
        key, form = "edge_index", "int [2, edges], at least one edge"
        edges = file.read(key, "iu", "2", form)
        if edges.shape[0] != 2 or edges.shape[1] == 0:
            raise file.error(key, f"{edges.dtype} {list(edges.shape)}", form)
        source, target = edges.astype(np.int64)
    wrong = np.flatnonzero((np.minimum(source, target) < 0) | (np.maximum(source, target) >= nodes))
    if len(wrong):
        found = f"edge {wrong[0]} from {source[wrong[0]]} to {target[wrong[0]]}"
        raise file.error(key, found, f"nodes 0 to {nodes - 1}")
    return source, target, key


def _weights(file: NpzFile, edges: int, ignored: tuple[str, ...]) -> Floats | None:
    """float32 [edges] as the file lists them; None where it has none, or 1 for each."""
    if "edge_attr" in file.keys and "edge_attr" not in ignored:
        allowed = "edge_weight: float [edges], the only numbers of edges that models use; or "
        allowed += "ignore: [edge_attr]"
        raise file.error("edge_attr", "numbers that no model here uses", allowed)
    key = "adj_data" if _is_benchmark(file) else "edge_weight"
    if key not in file or key in ignored:
        return None
    form = f"float [{edges}], finite numbers from 0; or ignore: [{key}]"
    values = file.read(key, "fiub", "12", form)
    weights: Floats = values.reshape(-1).astype(np.float32)
    if len(weights) != edges:
        raise file.error(key, f"{values.dtype} {list(values.shape)}", form)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise file.error(key, f"{weights[wrong[0]]} of edge {wrong[0]}", form)
    return None if _is_benchmark(file) and (weights == 1).all() else weights


def _ordered(
    file: NpzFile,
    key: str,
    ends: tuple[Ints, Ints],
    weights: Floats | None,
    nodes: int,
    directed: bool | None,
) -> tuple[Ints, Floats | None]:
    """Edges sorted by (target, source), each once, without self-loops, and their weights."""
    source, target = ends
    loops = source == target
    if weights is not None and (weights[loops] != 1).any():
        place = np.flatnonzero(loops & (weights != 1))[0]
        found = f"weight {weights[place]} of the self-loop of node {source[place]}"
        raise file.error(key, found, "1, or no self-loops: layers add their own")
    source, target = source[~loops], target[~loops]
    if not len(source):
        raise file.error(key, "self-loops only", "at least one other edge")
    codes = target * nodes + source
    if directed is None and not _is_benchmark(file):
        _check_direction(file, key, codes, nodes)
    kept = None if weights is None else weights[~loops]
    if directed is False or (directed is None and _is_benchmark(file)):
        codes = np.concatenate((codes, source * nodes + target))
        kept = None if kept is None else np.concatenate((kept, kept))
    if kept is None:
        codes = distinct(codes)
    else:
        order = np.argsort(codes, kind="stable")
        codes, kept = codes[order], kept[order]
        new = np.ones(len(codes), dtype=np.bool_)
        np.not_equal(codes[1:], codes[:-1], out=new[1:])
        twice = np.flatnonzero(~new & (kept != np.roll(kept, 1)))
        if len(twice):
            code = codes[twice[0]]
            found = f"two weights of the edge from {code % nodes} to {code // nodes}"
            raise file.error(key, found, "one weight for each edge")
        codes, kept = codes[new], kept[new]
    return np.stack((codes % nodes, codes // nodes)), kept


def _check_direction(file: NpzFile, key: str, codes: Ints, nodes: int) -> None:
    """Raise InputError where hardly an edge has its reverse: it may be listed once."""
    ordered = distinct(codes)
    reverse = np.sort(ordered % nodes * nodes + ordered // nodes)
    places = np.searchsorted(ordered, reverse).clip(max=len(ordered) - 1)
    both = int((ordered[places] == reverse).sum())
    if both < MOST_ONE_WAY * len(ordered):
        found = f"{len(ordered)} edges, of which {both} have their reverse"
        allowed = "directed: true in data for a directed graph, directed: false to add reverses"
        raise file.error(key, found, allowed)


def _feature_shape(file: NpzFile) -> tuple[int, int]:
    """Nodes and columns, of dense rows or of CSR."""
    parts = [key for key in _CSR if key in file]
    form = f"numbers [nodes, features], or {', '.join(map(file.key, _CSR))}"
    if "x" in file and parts:
        found = f"both {file.key('x')} and {file.key(parts[0])}"
        raise file.error(parts[0], found, "one form of features")
    if not parts:
        rows, columns = file.shape("x", "fiub", "2", form)
        key = "x"
    else:
        key = "x_shape"
        shape = file.read(key, "iu", "1", "int [2]: nodes, features").tolist()
        if len(shape) != 2 or min(shape) < 0:
            raise file.error(key, shape, "int [2]: nodes, features")
        rows, columns = shape
        if file.shape("x_indptr", "iu", "1", "int [nodes + 1]") != (rows + 1,):
            raise file.error("x_indptr", "another length", f"int [{rows + 1}], one more than nodes")
        indices = file.shape("x_indices", "iu", "1", "int [n]")
        values = file.shape("x_data", "fiub", "1", "numbers [n]")
        if indices != values:
            found = f"{values[0]} for {indices[0]} {file.key('x_indices')}"
            raise file.error("x_data", found, "as many")
    if columns == 0:
        raise file.error(key, "no features", "at least one column")
    return rows, columns


def _finite(file: NpzFile, key: str) -> Floats:
    """An array in float32; a number that does not fit becomes infinite and is refused."""
    with np.errstate(over="ignore"):
        values: Floats = file.read(key, "fiub", "12", "numbers").astype(np.float32)
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        place = tuple(wrong[0].tolist())
        where = f"node {place[0]}, column {place[1]}" if len(place) == 2 else f"{place[0]}"
        raise file.error(key, f"{values[place]} at {where}", "finite float32 numbers")
    return values


def _offsets(file: NpzFile, key: str, rows: int, counted: str) -> Ints:
    """int64 [rows + 1], where each row of `counted` begins."""
    entries = file.shape(counted, "iu", "1", "int [n]")[0]
    indptr: Ints = file.read(key, "iu", "1", f"int [{rows + 1}]").astype(np.int64)
    fits = len(indptr) == rows + 1 and indptr[0] == 0 and indptr[-1] == entries
    if not fits or (np.diff(indptr) < 0).any():
        found = f"{len(indptr)} numbers, {indptr[0]} to {indptr[-1]}" if len(indptr) else "nothing"
        raise file.error(key, found, f"{rows + 1} numbers, 0 to {entries}, never falling")
    return indptr


def _rows(file: NpzFile, nodes: int, columns: int) -> Arrays:
    """CSR with columns sorted within each row, as torch needs it."""
    indptr = _offsets(file, "x_indptr", nodes, "x_indices")
    chosen: Ints = file.read("x_indices", "iu", "1", "int [n]").astype(np.int64)
    values = _finite(file, "x_data")
    wrong = chosen[(chosen < 0) | (chosen >= columns)]
    if len(wrong):
        raise file.error("x_indices", f"column {wrong[0]}", f"0 to {columns - 1}")
    row = np.repeat(np.arange(nodes), np.diff(indptr))
    order = np.lexsort((chosen, row))
    chosen, values = chosen[order], values[order]
    twice = np.flatnonzero((np.diff(row) == 0) & (np.diff(chosen) == 0))
    if len(twice):
        found = f"column {chosen[twice[0]]} twice in row {row[twice[0]]}"
        raise file.error("x_indices", found, "each column once a row")
    return {"indptr": indptr, "columns": chosen, "values": values}
