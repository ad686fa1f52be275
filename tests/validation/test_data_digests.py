"""Loaded data agree with the digests of an independent reader; damaged ones do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.data.custom_graph_settings import CustomGraph
from gnnhpc.data.data_settings import (
    Cifar10,
    Data,
    RedditShaped,
    SyntheticCifar10,
    SyntheticCitation,
)
from gnnhpc.data.graph_sets import SyntheticGraphs, UnlabelledTuGraphs
from gnnhpc.data.load_graph import load_graph
from gnnhpc.data.published_graphs import PublishedGraph
from gnnhpc.validation import data_digests
from gnnhpc.validation.data_digests import data_digests as digests_of_data
from gnnhpc.validation.data_digests import digests_of, verify_data
from tests.tools.data_files import (
    cifar_records,
    custom_arrays,
    real_root,
    set_facts,
    write_binary,
    write_npz,
    write_planetoid,
)

GRAPH = SyntheticCitation(nodes=120, edges=500, features=24)
MADE: list[Data] = [
    GRAPH,
    RedditShaped(nodes=80, edges=400, features=9, classes=3),
    RedditShaped(nodes=80, edges=400, features=9, classes=3, storage="float16"),
    SyntheticCifar10(train=60, test=12, image_size=4, classes=7),
    SyntheticGraphs(graphs=20, nodes=9),
    SyntheticGraphs(graphs=20, nodes=9, features="degree", split=2),
]
REAL: dict[str, Data] = {
    **{name: PublishedGraph(name=name) for name in ("cora", "citeseer", "photo", "cs")},
    "pubmed": PublishedGraph(name="pubmed", features="made"),
    "reddit10k": UnlabelledTuGraphs(name="reddit10k"),
    "cifar10": Cifar10(),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("data", MADE, ids=lambda data: data.name)
def test_synthetic_data_agree(data: Data) -> None:
    for _ in ("made", "from the cache"):
        assert verify_data(data, None).verdict == "ok"


def test_published_layouts_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, "cora", Facts("graph", 40, 3, nodes=700, edges=4_000))
    set_facts(monkeypatch, "photo", Facts("graph", 30, 3, nodes=200, edges=4_000))
    write_planetoid(tmp_path, "Cora")
    raw = tmp_path / "Photo" / "raw"
    write_npz(raw, "amazon_electronics_photo.npz", nodes=200, columns=30, classes=3)
    for name in ("data_batch_1", "test_batch"):
        write_binary(tmp_path, name, cifar_records(20, 1))
    for data in (PublishedGraph(name="cora"), PublishedGraph(name="photo"), Cifar10()):
        check = verify_data(data, tmp_path)
        assert (check.verdict, check.detail) == (
            "ok",
            "the loaded arrays are those of an independent reader",
        )


@pytest.mark.parametrize("name", REAL)
def test_real_data_agree(name: str) -> None:
    root, data = real_root(), REAL[name]
    files = data.files()
    if files is None or not files.directory(root).is_dir():
        pytest.skip(f"no {name} under GNNHPC_DATA")
    assert verify_data(data, root).verdict == "ok"


def test_a_digest_is_made_once_for_files_that_do_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "graph.npz"
    np.savez(path, **custom_arrays())
    data = CustomGraph(path=str(path)).planned(tmp_path)
    first = digests_of_data(data, None)
    with monkeypatch.context() as patch:
        patch.setattr(data_digests, "read_arrays", lambda *_: pytest.fail("read again"))
        assert digests_of_data(data, None) == first
    np.savez(path, **custom_arrays() | {"y": custom_arrays()["y"][::-1]})
    data = CustomGraph(path=str(path)).planned(tmp_path)
    assert digests_of_data(data, None)["labels"] != first["labels"]


def test_a_damaged_digest_is_made_again(tmp_path: Path) -> None:
    first = digests_of_data(GRAPH, None)
    (kept,) = (tmp_path / "cache" / "digests").iterdir()
    kept.write_text("{")
    assert digests_of_data(GRAPH, None) == first


def test_data_that_cannot_be_read_again_are_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no such device")

    monkeypatch.setattr(data_digests, "read_arrays", refuse)
    check = verify_data(GRAPH, None)
    assert check.verdict == "inconclusive"
    assert "no such device" in check.detail


def test_one_wrong_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_graph(GRAPH, None)
    graph.features.values()[7] += 1e-6
    monkeypatch.setattr(data_digests, "load_graph", lambda *_: graph)
    check = verify_data(GRAPH, None)
    assert (check.verdict, check.detail[:14]) == ("invalid", "feature values")


def test_a_digest_of_rounded_numbers_does_not_depend_on_their_rounding() -> None:
    x = np.random.default_rng(0).random(10_000).astype(np.float32)
    exact = digests_of({"x": x}, {"x"})
    near, far = x * np.float32(1 + 1e-7), x.copy()
    far[5] += 0.01
    assert data_digests.differences({"x": near}, exact) == []
    assert data_digests.differences({"x": far}, exact) != []
    assert data_digests.differences({"x": np.full_like(x, np.nan)}, exact) != []
