"""Independent readers of data sets: the arrays by name, read by other code than the loaders.

They read images, and graphs as Planetoid, Shchur et al. and TU publish them. Of other data, which
are synthetic or which one library alone reads, they take what the loader's only reader gives, and
make splits, features and edges of it themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.data.data_files import existing_root
from gnnhpc.data.data_settings import Data, SyntheticCifar10
from gnnhpc.data.edges_and_splits import DATA_SEED
from gnnhpc.data.graph_sets import GraphSetData, SyntheticGraphs, TuGraphs
from gnnhpc.data.load_graph import graph_arrays
from gnnhpc.data.published_graphs import PublishedGraph
from gnnhpc.data.readers.safe_pickle import read_arrays as read_pickle
from gnnhpc.data.synthetic.citation import made_words
from gnnhpc.data.synthetic.images import synthetic_images
from gnnhpc.data.synthetic.threads import synthetic_threads
from gnnhpc.records.schema import Phase

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
"""Each array by its name."""
Ids = npt.NDArray[np.int64]
_CIFAR: dict[Phase, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
_CIFAR_RECORD = 3_073


def read_arrays(data: Data, root: Path | None) -> tuple[Arrays, bool]:
    """Read a data set, and say whether another reader than the run's has read it.

    Numbers in float64 are the run's before it rounds them. Raises InputError and OSError for files
    that cannot be read.
    """
    if data.facts().kind == "images":
        arrays: Arrays = {}
        for split in _CIFAR:
            pixels, labels = read_images(data, root, split)
            arrays |= {f"{split} pixels": pixels, f"{split} labels": labels}
        return arrays, not isinstance(data, SyntheticCifar10)
    if isinstance(data, GraphSetData):
        return read_graph_set(data, root), isinstance(data, TuGraphs)
    published = _published(data, root)
    read = graph_arrays(data, root) if published is None else published
    rng = np.random.default_rng([DATA_SEED, len(read["labels"])])
    masks = {split: read[split] for split in SPLITS if split in read}
    masks = masks or _random_node_split(read["labels"], data.facts().classes, rng)
    if "edges" not in read:
        source, target = read["ends"]
        read["edges"] = sorted_edges(source, target, len(read["labels"]))
    if not ("dense" in read or "indptr" in read):
        read |= made_words(len(read["labels"]), data.facts().features, rng)
    rows = [read[part] for part in ("dense", "values", "columns", "indptr") if part in read]
    arrays = graph_arrays_by_name(masks, read["labels"], read["edges"], *rows)
    if "edge_weight" in read:
        arrays["edge weights"] = read["edge_weight"]
    if "in_source" in read or published is not None:
        source, target = read["edges"]
        arrays |= in_edges_by_name(source, _offsets(target, len(read["labels"])))
    return arrays, published is not None


def graph_arrays_by_name(
    masks: Mapping[str, Array], labels: Array, edges: Array, *features: Array
) -> Arrays:
    """What a graph or a set of them has. `features` are one dense array; or values by rows, their
    columns, and where each row begins among them."""
    arrays: Arrays = {f"{name} mask": mask for name, mask in masks.items()}
    arrays |= {"labels": labels, "edge sources": edges[0], "edge targets": edges[1]}
    if len(features) == 1:
        return arrays | {"features": features[0]}
    values, columns, offsets = features
    arrays |= {"feature values": values, "feature columns": columns.astype(np.int64, copy=False)}
    return arrays | {"feature offsets": offsets.astype(np.int64, copy=False)}


def in_edges_by_name(source: Array, offsets: Array) -> Arrays:
    """The edges of a graph by target."""
    return {"in-edge sources": source.astype(np.int32, copy=False), "in-edge offsets": offsets}


def sorted_edges(source: Ids, target: Ids, nodes: int) -> Ids:
    """int64 [2, E]: edges sorted by (target, source), each once, without self-loops."""
    codes = np.unique((target.astype(np.int64) * nodes + source)[source != target])
    return np.stack((codes % nodes, codes // nodes))


def _offsets(ascending: Array, count: int) -> Ids:
    """int64 [count + 1]: where each of the numbers 0 to count begins in an ascending array."""
    return np.searchsorted(ascending, np.arange(count + 1)).astype(np.int64)


def _random_node_split(labels: Ids, classes: int, rng: np.random.Generator) -> dict[str, Array]:
    """20 nodes of each class to train, 30 to validate, in a random order; the others to test."""
    order = rng.permutation(len(labels))
    masks: dict[str, Array] = {split: np.zeros(len(labels), dtype=np.bool_) for split in SPLITS}
    for label in range(classes):
        members = order[labels[order] == label]
        masks["train"][members[:20]] = True
        masks["val"][members[20:50]] = True
    masks["test"] = ~(masks["train"] | masks["val"])
    return masks


def _published(data: Data, root: Path | None) -> dict[str, Any] | None:
    """The arrays of a published layout that has a second reader; None for other data."""
    if not isinstance(data, PublishedGraph) or data.features != "real":
        return None
    row = data.published
    folder = row.files.directory(existing_root(data.name, root))
    if row.dataset == "Planetoid":
        return _planetoid(folder, str(row.argument))
    if row.dataset in ("CitationFull", "Amazon", "Coauthor"):
        return _npz_graph(folder / row.files.names[0])
    return None


def _planetoid(folder: Path, name: str) -> dict[str, Any]:
    """Planetoid's eight files (Yang, Cohen and Salakhutdinov 2016, arXiv:1603.08861).

    The files hold the nodes that are seen in training in their order, then the test nodes in the
    order of `test.index`. Node numbers that are missing there are nodes without features and
    labels; their class is 0. Features are divided by their sum, but for sums below one.
    """
    parts = {
        part: read_pickle(folder / f"ind.{name.lower()}.{part}", encoding="latin1")
        for part in ("tx", "allx", "y", "ty", "ally", "graph")
    }
    text = (folder / f"ind.{name.lower()}.test.index").read_text(encoding="ascii")
    test = np.array(text.split(), dtype=np.int64)
    seen, trained = parts["allx"].shape[0], len(parts["y"])
    nodes = max(seen, int(test.max()) + 1)
    labels = np.zeros(nodes, dtype=np.int64)
    labels[:seen] = np.argmax(parts["ally"], axis=1)
    labels[test] = np.argmax(parts["ty"], axis=1)
    masks = {split: np.zeros(nodes, dtype=np.bool_) for split in SPLITS}
    masks["train"][:trained] = True
    masks["val"][trained : trained + 500] = True
    masks["test"][test] = True
    neighbours = parts["graph"]
    source = np.repeat(list(neighbours), [len(ends) for ends in neighbours.values()])
    target = np.concatenate([np.asarray(ends, dtype=np.int64) for ends in neighbours.values()])

    empty = scipy.sparse.csr_matrix((1, parts["allx"].shape[1]), dtype=parts["allx"].dtype)
    stacked = scipy.sparse.vstack([parts["allx"], parts["tx"], empty]).tocsr()
    row = np.full(nodes, stacked.shape[0] - 1)
    row[:seen] = np.arange(seen)
    row[test] = seen + np.arange(len(test))
    features = scipy.sparse.csr_array(stacked[row].astype(np.float64))
    divisor = np.maximum(1.0, np.asarray(features.sum(axis=1)).ravel())
    features.data /= np.repeat(divisor, np.diff(features.indptr))
    ends = (source.astype(np.int64), target)
    return masks | {"labels": labels, "ends": ends} | _rows(features)


def _npz_graph(path: Path) -> dict[str, Any]:
    """The file of Shchur et al. 2018 (arXiv:1811.05868).

    Edges count in both directions, and features above zero are one.
    """
    with np.load(path, allow_pickle=False) as file:
        labels = file["labels"].astype(np.int64)
        starts, ends = file["adj_indptr"], file["adj_indices"].astype(np.int64)
        rows = (file["attr_data"].astype(np.float32), file["attr_indices"], file["attr_indptr"])
        features = scipy.sparse.csr_array(rows, shape=tuple(file["attr_shape"]))
    np.copyto(features.data, 1.0, where=features.data > 0)
    begins = np.repeat(np.arange(len(labels)), np.diff(starts))
    both = np.concatenate([begins, ends]), np.concatenate([ends, begins])
    return {"labels": labels, "ends": both} | _rows(features)


def _rows(features: scipy.sparse.csr_array) -> dict[str, Array]:
    features.sort_indices()
    features.eliminate_zeros()
    return {"values": features.data, "columns": features.indices, "indptr": features.indptr}


def read_graph_set(data: GraphSetData, root: Path | None) -> Arrays:
    """Many small graphs, from their generator or from TU's text files (Morris et al. 2020,
    arXiv:2007.08663).

    A random order splits them: 8 tenths are to train, one is to validate, the rest to test.
    """
    stored: Ids | None = None
    if isinstance(data, TuGraphs):
        graph_of, labels, ends, stored = _tu_text(data, root)
    else:
        assert isinstance(data, SyntheticGraphs)
        made = synthetic_threads(data)
        graph_of = np.repeat(np.arange(data.graphs), np.diff(made["first"]))
        labels, ends = made["labels"], made["edges"]
    graphs, nodes, width = len(labels), len(graph_of), data.facts().features
    edges = sorted_edges(ends[0], ends[1], nodes)
    order = np.random.default_rng([DATA_SEED, 7, graphs, data.split]).permutation(graphs)
    parts = np.split(order, (graphs * 8 // 10, graphs * 8 // 10 + graphs // 10))
    masks = {s: np.isin(np.arange(graphs), part) for s, part in zip(SPLITS, parts, strict=True)}
    degree = np.bincount(edges[1], minlength=nodes)
    if data.features in ("constant", "degree"):
        column = np.ones(nodes) if data.features == "constant" else degree
        features: list[Array] = [column.astype(np.float32)[:, None]]
    else:
        columns = degree if stored is None or data.features == "one-hot" else stored
        ones = np.ones(nodes, dtype=np.float32)
        features = [ones, np.minimum(columns, width - 1), np.arange(nodes + 1)]
    arrays = graph_arrays_by_name(masks, labels, edges, *features)
    return arrays | {"first": _offsets(graph_of, graphs)}


def _tu_text(data: TuGraphs, root: Path | None) -> tuple[Ids, Ids, Ids, Ids | None]:
    """Graph of each node, labels, edges [2, n], and node labels if there are any.

    In the files nodes and graphs count from 1 and labels from any number.
    """
    paths = {path.stem.split("_", 1)[1]: path for path in data.raw_files(root)}
    graph_of = np.loadtxt(paths["graph_indicator"], dtype=np.int64, ndmin=1) - 1
    listed = np.loadtxt(paths["graph_labels"], dtype=np.int64, ndmin=1)
    labels = np.unique(listed, return_inverse=True)[1]
    pairs = np.loadtxt(paths["A"], dtype=np.int64, delimiter=",", ndmin=2) - 1
    stored = None
    if "node_labels" in paths:
        stored = np.loadtxt(paths["node_labels"], dtype=np.int64, ndmin=1)
        stored = stored - stored.min()
    return graph_of, labels, pairs.T, stored


def read_images(data: Data, root: Path | None, split: Phase) -> tuple[Array, Array]:
    """Pixels uint8 [N, 3, H, W] and labels int64 [N] of one split.

    The published files hold records of one byte for the label and three planes of 1,024 bytes.
    Files that are absent are left out. Raises InputError where there is no data root, and OSError
    for files that cannot be read.
    """
    if isinstance(data, SyntheticCifar10):
        return synthetic_images(data, split)
    folder = existing_root(data.name, root) / "cifar-10-batches-bin"
    paths = [folder / f"{name}.bin" for name in _CIFAR[split]]
    files = [np.frombuffer(path.read_bytes(), np.uint8) for path in paths if path.is_file()]
    records = np.concatenate(files).reshape(-1, _CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)
