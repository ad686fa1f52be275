"""Planetoid's eight files (Yang, Cohen and Salakhutdinov 2016), read a second time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from gnnhpc.data.readers.unpickle import read_arrays

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
CsrRows = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], int]
_VALIDATED = 500


def read_planetoid(
    folder: Path, name: str
) -> tuple[Ids, dict[str, Mask], tuple[Ids, Ids], CsrRows]:
    """Labels, masks, sources and targets of edges, and the features as CSR rows.

    The files hold the nodes that are seen in training in their order, then the test nodes in the
    order of `test.index`. Test numbers that are missing there are nodes without features and
    labels, which count as class 0.
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
    masks["val"][trained : trained + _VALIDATED] = True
    masks["test"][test] = True
    listed = parts["graph"]
    source = np.repeat(list(listed), [len(ends) for ends in listed.values()])
    target = np.concatenate([np.asarray(ends, dtype=np.int64) for ends in listed.values()])
    place = np.zeros(nodes, dtype=np.int64)
    place[:seen] = np.arange(seen)
    place[test] = seen + np.arange(len(test))
    stacked = scipy.sparse.vstack([parts["allx"], parts["tx"]]).tocsr()
    absent = np.ones(nodes, dtype=np.bool_)
    absent[:seen] = False
    absent[test] = False
    empty = scipy.sparse.csr_matrix((1, stacked.shape[1]), dtype=stacked.dtype)
    place[absent] = stacked.shape[0]
    rows = scipy.sparse.vstack([stacked, empty]).tocsr()[place]
    return (
        labels,
        masks,
        (source.astype(np.int64), target),
        (rows.indptr, rows.indices, rows.data, rows.shape[1]),
    )
