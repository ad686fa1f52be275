"""Independent readers of two published layouts of graphs.

Planetoid has eight files (Yang, Cohen and Salakhutdinov 2016, arXiv:1603.08861). Shchur et al. 2018
(arXiv:1811.05868) have one .npz file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse

from gnnhpc.data.readers.unpickle import read_arrays

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_VALIDATION_NODES = 500


def read_planetoid(
    folder: Path, name: str
) -> tuple[Ids, dict[str, Mask], tuple[Ids, Ids], scipy.sparse.csr_array]:
    """Labels, masks, edges (sources, targets) as listed, and features divided by their row sums.

    The files hold the nodes that are seen in training in their order, then the test nodes in the
    order of `test.index`. Node numbers that are missing there are nodes without features and
    labels; their class is 0. Features are float64, rows with a sum below one are not divided.
    """
    parts = {
        part: read_arrays(folder / f"ind.{name.lower()}.{part}", encoding="latin1", graphs=True)
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
    masks["val"][trained : trained + _VALIDATION_NODES] = True
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


def read_npz_graph(path: Path) -> tuple[Ids, tuple[Ids, Ids], scipy.sparse.csr_array]:
    """Labels, edges (sources, targets) in both directions, and features of float32.

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
