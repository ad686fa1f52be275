"""The one file of Shchur et al. 2018 (arXiv:1811.05868), read a second time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
CsrRows = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], int]


def read_npz_graph(path: Path) -> tuple[Ids, tuple[Ids, Ids], CsrRows]:
    """Labels, sources and targets of edges in both directions, and CSR rows of features.

    Features above zero count as one.
    """
    with np.load(path, allow_pickle=False) as file:
        labels = file["labels"].astype(np.int64)
        starts, ends = file["adj_indptr"], file["adj_indices"].astype(np.int64)
        width = int(file["attr_shape"][1])
        values = file["attr_data"].astype(np.float32)
        rows = (file["attr_indptr"], file["attr_indices"], values, width)
    np.copyto(values, 1.0, where=values > 0)
    begins = np.repeat(np.arange(len(labels)), np.diff(starts))
    both = np.concatenate([begins, ends]), np.concatenate([ends, begins])
    return labels, both, rows
