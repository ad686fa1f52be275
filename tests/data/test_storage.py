"""Dense features kept in half precision: what is rounded, kept and refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gnnhpc.data.stored_halves import with_storage

from gnnhpc.core.errors import InputError
from gnnhpc.data.data_settings import RedditShaped
from gnnhpc.data.load_graph import load_graph
from gnnhpc.data.published_graphs import PublishedGraph

SMALL = {"nodes": 60, "edges": 400, "features": 9, "classes": 3}


def test_features_are_rounded_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path))
    whole = load_graph(RedditShaped(**SMALL), None)
    for _ in ("made", "kept"):
        rounded = load_graph(RedditShaped(**SMALL, storage="float16"), None)
        assert rounded.features.dtype == torch.float16
        assert torch.equal(rounded.features, whole.features.half())
        assert not torch.equal(rounded.features.float(), whole.features)
        assert torch.equal(rounded.edges, whole.edges)
        assert torch.equal(rounded.labels, whole.labels)


def test_the_graph_is_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half precision adds its features alone to what lies in the cache."""
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path))
    load_graph(RedditShaped(**SMALL, storage="float16"), None)
    load_graph(RedditShaped(**SMALL), None)
    dense, edges = (sorted(tmp_path.rglob(f"{name}.npy")) for name in ("dense", "edges"))
    assert (len(dense), len(edges)) == (2, 1)
    (halves,) = {path.parent for path in dense} - {path.parent for path in edges}
    assert [path.name for path in halves.glob("*.npy")] == ["dense.npy"]


@pytest.mark.parametrize("name", ["cora", "cs"])
def test_refused_for_features_of_mostly_zeros(name: str) -> None:
    with pytest.raises(ValueError, match="storage: found 'float16'; allowed: float32 for features"):
        PublishedGraph(name=name, storage="float16")
    assert PublishedGraph(name="reddit", storage="float16").storage == "float16"


def test_refused_for_numbers_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path))
    dense = np.array([[1.0, np.inf], [7e4, 2.0]], np.float32)
    with pytest.raises(InputError, match="up to 70000; allowed: float32, or numbers up to 65504"):
        with_storage(RedditShaped(**SMALL, storage="float16"), [], {"dense": dense})
    assert not list(tmp_path.rglob("dense.npy"))
