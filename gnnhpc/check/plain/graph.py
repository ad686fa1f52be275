"""A graph read a second time: its labels, splits, edges and the features of few nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnhpc.check.plain.npz_graph import read_npz_graph
from gnnhpc.check.plain.planetoid import read_planetoid
from gnnhpc.data.generators import DATA_SEED, made_words, synthetic_graph
from gnnhpc.data.graphs import published_arrays, skewed_arrays
from gnnhpc.data.own_graph import OwnGraph
from gnnhpc.data.published import PublishedGraph
from gnnhpc.data.published_files import Pyg
from gnnhpc.data.roots import existing_root
from gnnhpc.data.settings import Data, RedditShaped, SyntheticCitation

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
SPLIT_NAMES = ("train", "val", "test")
_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class PlainGraph:
    """Edges are [edges] each, by target and then by source, without loops and duplicates."""

    labels: Ids
    masks: dict[str, Mask]
    source: Ids
    target: Ids
    features: Callable[[int], Values]
    """Of one node, float64 [F], as published or made."""
    divided: bool = False
    """Whether features are divided by their sum, which rounds them."""

    @property
    def nodes(self) -> int:
        return len(self.labels)

    def among(self, kept: Mask) -> PlainGraph:
        """With the edges between `kept` nodes alone, numbered anew; kept is bool [nodes]."""
        alive = kept[self.source] & kept[self.target]
        return replace(self, source=self.source[alive], target=self.target[alive])

    def degrees(self, nodes: Ids) -> Ids:
        """Edges into each node."""
        first, end = (np.searchsorted(self.target, nodes, side) for side in ("left", "right"))
        return np.asarray(end - first, dtype=np.int64)

    def edges_into(self, node: int) -> tuple[Ids, Ids]:
        """Sources of a node's edges, ascending, and the edges' numbers."""
        first = int(np.searchsorted(self.target, node, "left"))
        end = int(np.searchsorted(self.target, node, "right"))
        return self.source[first:end], np.arange(first, end)

    def has(self, numbers: Ids) -> Mask:
        """Whether there are edges of these numbers."""
        return (numbers >= 0) & (numbers < len(self.source))


@dataclass(frozen=True)
class LessEdges(PlainGraph):
    """A graph without some of its edges, which keep their numbers."""

    left_out: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    """Numbers, ascending."""

    @classmethod
    def of(cls, graph: PlainGraph, left_out: Ids) -> LessEdges:
        given = {each.name: getattr(graph, each.name) for each in fields(graph)}
        return cls(**given, left_out=left_out)

    def degrees(self, nodes: Ids) -> Ids:
        into = self.target[self.left_out]
        first, end = (np.searchsorted(into, nodes, side) for side in ("left", "right"))
        return np.asarray(super().degrees(nodes) - (end - first), dtype=np.int64)

    def edges_into(self, node: int) -> tuple[Ids, Ids]:
        sources, numbers = super().edges_into(node)
        kept = self.has(numbers)
        return sources[kept], numbers[kept]

    def has(self, numbers: Ids) -> Mask:
        return super().has(numbers) & ~np.isin(numbers, self.left_out)


def plain_graph(data: Data, root: Path | None) -> PlainGraph:
    """The graph of an experiment, anew: from its generator, or from its files as published.

    Of the layouts that PyG or OGB alone can read, the arrays that were kept when they were read
    are taken. Features kept in half precision are rounded here once more.
    """
    if getattr(data, "storage", "float32") == "float32":
        return _in_full(data, root)
    whole = _in_full(data.model_copy(update={"storage": "float32"}), root)
    return replace(whole, features=_rounded(whole.features))


def _in_full(data: Data, root: Path | None) -> PlainGraph:
    """With features as they were read or made."""
    if isinstance(data, SyntheticCitation):
        return _made(data)
    if isinstance(data, RedditShaped):
        return _skewed(data, root)
    if isinstance(data, OwnGraph):
        return _own(Path(data.path))
    assert isinstance(data, PublishedGraph)
    reader = data.published.reader
    folder = data.published.directory(existing_root(data.name, root))
    if isinstance(reader, Pyg) and data.features == "real":
        if reader.dataset == "Planetoid":
            labels, masks, edges, rows = read_planetoid(folder, str(reader.argument))
            return _of(labels, masks, *edges, _sparse(*rows, divided=True), divided=True)
        if reader.dataset in ("CitationFull", "Amazon", "Coauthor"):
            labels, edges, rows = read_npz_graph(folder / data.published.files[0])
            masks = _drawn_split(labels, data.facts().classes, _drawn_order(labels))
            return _of(labels, masks, *edges, _sparse(*rows))
    return _kept(data, root)


def _rounded(features: Callable[[int], Values]) -> Callable[[int], Values]:
    return lambda node: features(node).astype(np.float16).astype(np.float64)


def _of(
    labels: Ids,
    masks: dict[str, Mask],
    source: Ids,
    target: Ids,
    features: Callable[[int], Values],
    *,
    divided: bool = False,
) -> PlainGraph:
    """With edges sorted, each once, and no loops; arrays that are so are not copied."""
    nodes = len(labels)
    if _in_order(source, target, nodes):
        return PlainGraph(labels, masks, source, target, features, divided)
    other = source != target
    # Sorted by hand: numpy's own unique hashes, which takes many times as long.
    codes = np.sort(target[other].astype(np.int64) * nodes + source[other])
    new = np.ones(len(codes), dtype=np.bool_)
    new[1:] = np.diff(codes) > 0
    codes = codes[new]
    return PlainGraph(labels, masks, codes % nodes, codes // nodes, features, divided)


def _made(data: SyntheticCitation) -> PlainGraph:
    made = synthetic_graph(data)
    masks = {split: getattr(made, split) for split in SPLIT_NAMES}
    words = made.features
    features = _sparse(words.indptr, words.columns, words.values, words.shape[1])
    return _of(made.labels, masks, made.edges[0], made.edges[1], features)


def _in_order(source: Ids, target: Ids, nodes: int) -> bool:
    """Whether edges are sorted by target and source, each once, and none is a loop.

    In pieces: those of a large graph are read from a file that all ranks of a host share.
    """
    before = -1
    for begin in range(0, len(source), _AT_ONCE):
        ends = source[begin : begin + _AT_ONCE], target[begin : begin + _AT_ONCE]
        codes = ends[1].astype(np.int64) * nodes + ends[0]
        if codes[0] <= before or not (np.diff(codes) > 0).all() or (ends[0] == ends[1]).any():
            return False
        before = int(codes[-1])
    return True


def _skewed(data: RedditShaped, root: Path | None) -> PlainGraph:
    """As it was kept: to make one takes minutes."""
    kept = skewed_arrays(data, root)
    masks = {split: kept[split] for split in SPLIT_NAMES}
    source, target = kept["edges"]
    return _of(kept["labels"], masks, source, target, _dense(kept["dense"]))


def _own(path: Path) -> PlainGraph:
    with np.load(path, allow_pickle=False) as file:
        labels = file["y"].astype(np.int64)
        masks = {split: _mask(file, split, len(labels)) for split in SPLIT_NAMES}
        source, target = file["edge_index"]
        features: Callable[[int], Values]
        if "x" in file:
            x = file["x"].astype(np.float32)
            features = _dense(x)
        else:
            width = int(file["x_shape"][1])
            features = _sparse(
                file["x_indptr"], file["x_indices"], file["x_data"].astype(np.float32), width
            )
    return _of(labels, masks, source, target, features)


def _mask(file: Any, split: str, nodes: int) -> Mask:
    if f"{split}_mask" in file:
        return np.asarray(file[f"{split}_mask"], dtype=np.bool_)
    mask = np.zeros(nodes, dtype=np.bool_)
    mask[file[f"{split}_idx"]] = True
    return mask


def _kept(data: PublishedGraph, root: Path | None) -> PlainGraph:
    arrays = published_arrays(data, root)
    labels, facts = arrays["labels"], data.facts()
    rng = np.random.default_rng([DATA_SEED, len(labels)])
    if "train" in arrays:
        masks = {split: np.asarray(arrays[split]) for split in SPLIT_NAMES}
    else:
        masks = _drawn_split(labels, facts.classes, rng.permutation(len(labels)))
    if "dense" in arrays:
        features = _dense(arrays["dense"])
    elif "indptr" in arrays:
        columns, values = arrays["columns"], arrays["values"]
        features = _sparse(arrays["indptr"], columns, values, facts.features)
    else:
        words = made_words(len(labels), facts.features, rng)
        features = _sparse(words.indptr, words.columns, words.values, facts.features)
    source, target = arrays["edges"]
    return PlainGraph(labels, masks, source, target, features)


def _drawn_order(labels: Ids) -> Ids:
    return np.random.default_rng([DATA_SEED, len(labels)]).permutation(len(labels))


def _drawn_split(labels: Ids, classes: int, order: Ids) -> dict[str, Mask]:
    """20 nodes a class to train, 30 to validate, in a drawn order; the others to test."""
    masks = {split: np.zeros(len(labels), dtype=np.bool_) for split in SPLIT_NAMES}
    for c in range(classes):
        members = order[labels[order] == c]
        masks["train"][members[:20]] = True
        masks["val"][members[20:50]] = True
    masks["test"] = ~(masks["train"] | masks["val"])
    return masks


def _dense(rows: npt.NDArray[Any]) -> Callable[[int], Values]:
    return lambda node: np.asarray(rows[node], dtype=np.float64)


def _sparse(
    indptr: npt.NDArray[Any],
    columns: npt.NDArray[Any],
    values: npt.NDArray[Any],
    width: int,
    *,
    divided: bool = False,
) -> Callable[[int], Values]:
    """Rows of a CSR matrix; `divided` divides each by its sum, where that is above one."""

    def row(node: int) -> Values:
        found = np.zeros(width)
        part = slice(int(indptr[node]), int(indptr[node + 1]))
        found[columns[part]] = values[part]
        return found / max(1.0, float(found.sum())) if divided else found

    return row
