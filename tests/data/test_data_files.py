"""The data root, and what a data set's check reports on a login node."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.data.data_files import cache_root, data_root, root_to_fill
from gnnhpc.data.data_settings import Cifar10
from gnnhpc.data.published_graphs import PUBLISHED, PublishedGraph
from tests.tools.data_files import cifar_records, write_binary


def test_flag_beats_variable_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GNNHPC_DATA", raising=False)
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    assert data_root(None) is None
    assert root_to_fill(None) == tmp_path / "cache" / "data"
    (tmp_path / "cache" / "data").mkdir(parents=True)
    assert data_root(None) == tmp_path / "cache" / "data"
    (tmp_path / "data").mkdir()
    assert data_root(None) == root_to_fill(None) == tmp_path / "data"
    monkeypatch.setenv("GNNHPC_DATA", "from-variable")
    assert data_root(None) == tmp_path / "from-variable"
    assert data_root("from-flag") == tmp_path / "from-flag"
    assert data_root("~/x") == Path.home() / "x"


def test_cache_is_the_users_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GNNHPC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_root() == Path("/somewhere/gnnhpc")
    monkeypatch.setenv("GNNHPC_CACHE", "/elsewhere")
    assert cache_root() == Path("/elsewhere")


@pytest.mark.parametrize("config", [Cifar10(), PublishedGraph(name="cora")])
def test_no_root_and_missing_root(config: Cifar10 | PublishedGraph, tmp_path: Path) -> None:
    places = r"--data-root, data_root in the spec, or \$GNNHPC_DATA, else \S+ or \S+/data, which"
    with pytest.raises(InputError, match=f"data root: found none; allowed: .*{places}") as caught:
        config.check(None)
    assert f"`gnnhpc data get {config.name}`" in str(caught.value)
    with pytest.raises(InputError, match=r"nowhere: data root: found no such folder"):
        config.check(tmp_path / "nowhere")


def test_missing_raw_file_is_named(tmp_path: Path) -> None:
    raw = PUBLISHED["pubmed"].files
    raw.directory(tmp_path).mkdir(parents=True)
    for name in raw.names:
        (raw.directory(tmp_path) / name).touch()
    PublishedGraph(name="pubmed").check(tmp_path)
    (raw.directory(tmp_path) / "ind.pubmed.allx").unlink()
    PublishedGraph(name="pubmed", features="made").check(tmp_path)
    with pytest.raises(InputError, match=r"PubMed/raw/ind.pubmed.allx: .*features: made"):
        PublishedGraph(name="pubmed").check(tmp_path)
    (raw.directory(tmp_path) / "ind.pubmed.graph").unlink()
    with pytest.raises(InputError, match=r"ind.pubmed.graph: found no such file") as caught:
        PublishedGraph(name="pubmed", features="made").check(tmp_path)
    assert "features: made" not in str(caught.value)


def test_cifar_may_be_fetched_into_a_root_that_may_be_written(tmp_path: Path) -> None:
    Cifar10().check(tmp_path)
    write_binary(tmp_path, "test_batch", cifar_records(3, 0))
    with pytest.raises(InputError, match=r"data_batch_1.bin: found no such file"):
        Cifar10().check(tmp_path)
    write_binary(tmp_path, "data_batch_4", cifar_records(3, 0))
    Cifar10().check(tmp_path)
