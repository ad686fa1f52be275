"""Independent readers of graphs: from a generator, a custom file, or files as published.

Layouts that only PyG or OGB can read are taken from the arrays that the data cache keeps of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.data.custom_graph import CustomGraph
from gnnhpc.data.data_files import existing_root
from gnnhpc.data.data_settings import Data, RedditShaped, SyntheticCitation
from gnnhpc.data.load_graph import graph_arrays
from gnnhpc.data.published_graphs import PublishedGraph, Pyg
from gnnhpc.data.readers.safe_pickle import read_arrays
from gnnhpc.data.splits import DATA_SEED
from gnnhpc.data.synthetic.citation import made_words

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Features = npt.NDArray[Any] | scipy.sparse.csr_array
"""[nodes, F]: dense, or CSR with ascending columns in each row."""


@dataclass(frozen=True)
class ReferenceGraph:
    """A graph as an independent reader gives it."""

    labels: Ids
    """int64 [nodes]"""
    masks: dict[str, Mask]
    """bool [nodes] each: train, val, test."""
    source: Ids
    """int64 [edges]; edges are sorted by (target, source), without self-loops and duplicates."""
    target: Ids
    features: Features
    weights: npt.NDArray[np.float32] | None = None
    """float32 [edges]; None where edges have no weights."""
    rounded: bool = False
    """Whether the run's features differ from these by rounding: they are divided by their sum."""
    independent: bool = True
    """Whether the arrays come from another reader than the run's."""

    @property
    def nodes(self) -> int:
        return len(self.labels)


def read_graph(data: Data, root: Path | None) -> ReferenceGraph:
    """Read the graph of an experiment's data; features are rounded to the precision of storage.

    Raises InputError for missing files.
    """
    if isinstance(data, SyntheticCitation | RedditShaped):
        return _from_arrays(graph_arrays(data, root), data)
    if isinstance(data, CustomGraph):
        return _custom(data)
    assert isinstance(data, PublishedGraph)
    reader = data.published.reader
    folder = data.published.directory(existing_root(data.name, root))
    if isinstance(reader, Pyg) and data.features == "real":
        if reader.dataset == "Planetoid":
            labels, masks, ends, features = _read_planetoid(folder, str(reader.argument))
            edges = sorted_edges(*ends, len(labels))
            return ReferenceGraph(labels, masks, *edges, features, rounded=True)
        if reader.dataset in ("CitationFull", "Amazon", "Coauthor"):
            labels, ends, features = _read_npz_graph(folder / data.published.files[0])
            rng = np.random.default_rng([DATA_SEED, len(labels)])
            masks = _random_split(labels, data.facts().classes, rng)
            return ReferenceGraph(labels, masks, *sorted_edges(*ends, len(labels)), features)
    return _from_arrays(graph_arrays(data, root), data)


def sorted_edges(source: Ids, target: Ids, nodes: int) -> tuple[Ids, Ids]:
    """Sources and targets sorted by (target, source), each edge once, without self-loops."""
    codes = np.sort((target.astype(np.int64) * nodes + source)[source != target])
    first = np.ones(len(codes), dtype=np.bool_)
    first[1:] = np.diff(codes) > 0
    codes = codes[first]
    return codes % nodes, codes // nodes


def _custom(data: CustomGraph) -> ReferenceGraph:
    with np.load(data.path, allow_pickle=False) as file:
        benchmark = "edge_index" not in file
        listed = np.asarray(file["labels" if benchmark else "y"], dtype=np.float64).ravel()
        labels = np.nan_to_num(listed, nan=-1).astype(np.int64)
        source, target, weights = _custom_edges(file, data)
        dense = "attr_matrix" if benchmark else "x"
        features: Features
        if dense in file:
            features = file[dense].astype(np.float32)
        else:
            start = "attr" if benchmark else "x"
            parts = [file[f"{start}_{part}"] for part in ("data", "indices", "indptr")]
            rows = (parts[0].astype(np.float32), *parts[1:])
            features = scipy.sparse.csr_array(rows, shape=tuple(file[f"{start}_shape"]))
            features.sort_indices()
        if benchmark and not any(name.startswith(("train_", "val_", "test_")) for name in file):
            rng = np.random.default_rng([DATA_SEED, len(labels)])
            masks = _random_split(labels, int(data.classes or 0), rng)
            masks["test"] &= labels >= 0
        else:
            masks = {split: _custom_mask(file, split, len(labels), data.split) for split in SPLITS}
    return ReferenceGraph(labels, masks, source, target, features, weights)


def _custom_edges(file: Any, data: CustomGraph) -> tuple[Ids, Ids, npt.NDArray[np.float32] | None]:
    """Sources and targets sorted by (target, source), each once, and the weights."""
    benchmark = "edge_index" not in file
    if benchmark:
        starts, target = file["adj_indptr"], file["adj_indices"].astype(np.int64)
        source = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    else:
        source, target = file["edge_index"].astype(np.int64)
    key = "adj_data" if benchmark else "edge_weight"
    weights = np.ones(len(source), np.float32)
    if data.weighted:
        weights = file[key].astype(np.float32).ravel()
    if data.directed is False or (data.directed is None and benchmark):
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
        weights = np.concatenate([weights, weights])
    order = np.lexsort((source, target))
    source, target, weights = source[order], target[order], weights[order]
    kept = source != target
    kept[1:] &= (np.diff(source) != 0) | (np.diff(target) != 0)
    return source[kept], target[kept], weights[kept] if data.weighted else None


def _custom_mask(file: Any, split: str, nodes: int, column: int) -> Mask:
    if f"{split}_mask" in file:
        return np.asarray(file[f"{split}_mask"], dtype=np.bool_).reshape(nodes, -1)[:, column]
    mask = np.zeros(nodes, dtype=np.bool_)
    mask[file[f"{split}_idx"]] = True
    return mask


def _from_arrays(
    arrays: dict[str, npt.NDArray[Any]], data: PublishedGraph | RedditShaped | SyntheticCitation
) -> ReferenceGraph:
    labels, sizes = arrays["labels"], data.facts()
    rng = np.random.default_rng([DATA_SEED, len(labels)])
    if "train" in arrays:
        masks = {split: np.asarray(arrays[split]) for split in SPLITS}
    else:
        masks = _random_split(labels, sizes.classes, rng)
    features: Features
    if "dense" in arrays:
        features = arrays["dense"]
    else:
        words = arrays if "indptr" in arrays else made_words(len(labels), sizes.features, rng)
        rows = (words["values"], words["columns"], words["indptr"])
        features = scipy.sparse.csr_array(rows, shape=(len(labels), sizes.features))
    source, target = arrays["edges"]
    return ReferenceGraph(labels, masks, source, target, features, independent=False)


def _random_split(labels: Ids, classes: int, rng: np.random.Generator) -> dict[str, Mask]:
    """20 nodes of each class to train, 30 to validate, in a random order; the others to test."""
    order = rng.permutation(len(labels))
    masks = {split: np.zeros(len(labels), dtype=np.bool_) for split in SPLITS}
    for label in range(classes):
        members = order[labels[order] == label]
        masks["train"][members[:20]] = True
        masks["val"][members[20:50]] = True
    masks["test"] = ~(masks["train"] | masks["val"])
    return masks


def _read_planetoid(
    folder: Path, name: str
) -> tuple[Ids, dict[str, Mask], tuple[Ids, Ids], scipy.sparse.csr_array]:
    """Read Planetoid's eight files (Yang, Cohen and Salakhutdinov 2016, arXiv:1603.08861).

    Gives labels, masks, edges (sources, targets) as listed, and features divided by row sums.

    The files hold the nodes that are seen in training in their order, then the test nodes in the
    order of `test.index`. Node numbers that are missing there are nodes without features and
    labels; their class is 0. Features are float64, rows with a sum below one are not divided.
    """
    parts = {
        part: read_arrays(folder / f"ind.{name.lower()}.{part}", encoding="latin1")
        for part in ("tx", "allx", "y", "ty", "ally", "graph")
    }
    text = (folder / f"ind.{name.lower()}.test.index").read_text(encoding="ascii")
    test = np.array(text.split(), dtype=np.int64)
    seen = parts["allx"].shape[0]
    nodes = max(seen, int(test.max()) + 1)

    labels = np.zeros(nodes, dtype=np.int64)
    labels[:seen] = np.argmax(parts["ally"], axis=1)
    labels[test] = np.argmax(parts["ty"], axis=1)

    trained = len(parts["y"])
    masks = {split: np.zeros(nodes, dtype=np.bool_) for split in ("train", "val", "test")}
    masks["train"][:trained] = True
    masks["val"][trained : trained + 500] = True
    masks["test"][test] = True

    neighbours = parts["graph"]
    source = np.repeat(list(neighbours), [len(ends) for ends in neighbours.values()])
    target = np.concatenate([np.asarray(ends, dtype=np.int64) for ends in neighbours.values()])
    features = _planetoid_features(parts["allx"], parts["tx"], test, nodes)
    return labels, masks, (source.astype(np.int64), target), features


def _planetoid_features(
    allx: scipy.sparse.csr_matrix, tx: scipy.sparse.csr_matrix, test: Ids, nodes: int
) -> scipy.sparse.csr_array:
    seen = allx.shape[0]
    empty = scipy.sparse.csr_matrix((1, allx.shape[1]), dtype=allx.dtype)
    stacked = scipy.sparse.vstack([allx, tx, empty]).tocsr()
    row = np.full(nodes, stacked.shape[0] - 1)
    row[:seen] = np.arange(seen)
    row[test] = seen + np.arange(len(test))
    features = scipy.sparse.csr_array(stacked[row].astype(np.float64))
    features.sort_indices()
    features.eliminate_zeros()
    divisor = np.maximum(1.0, np.asarray(features.sum(axis=1)).ravel())
    features.data /= np.repeat(divisor, np.diff(features.indptr))
    return features


def _read_npz_graph(path: Path) -> tuple[Ids, tuple[Ids, Ids], scipy.sparse.csr_array]:
    """The file of Shchur et al. 2018 (arXiv:1811.05868): labels, edges (sources, targets) in both
    directions, and features of float32.

    Features above zero are one.
    """
    with np.load(path, allow_pickle=False) as file:
        labels = file["labels"].astype(np.int64)
        starts, ends = file["adj_indptr"], file["adj_indices"].astype(np.int64)
        values = file["attr_data"].astype(np.float32)
        rows = (values, file["attr_indices"], file["attr_indptr"])
        features = scipy.sparse.csr_array(rows, shape=tuple(file["attr_shape"]))
    np.copyto(features.data, 1.0, where=features.data > 0)
    features.sort_indices()
    features.eliminate_zeros()
    begins = np.repeat(np.arange(len(labels)), np.diff(starts))
    both = np.concatenate([begins, ends]), np.concatenate([ends, begins])
    return labels, both, features
