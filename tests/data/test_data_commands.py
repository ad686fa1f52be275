"""`gnnhpc data list|get|check`, against a site on this machine, and the data root."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gnnhpc.cli import main
from gnnhpc.core.errors import InputError
from gnnhpc.data import data_settings
from gnnhpc.data.data_files import Download, cache_root, data_root
from gnnhpc.data.data_settings import Cifar10
from gnnhpc.data.published_graphs import PUBLISHED, PublishedGraph, graph_sizes
from gnnhpc.data.registry import DATA
from tests.tools.data_files import (
    cifar_archive,
    custom_arrays,
    set_facts,
    write_npz,
    write_ogb,
    write_planetoid,
)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    """A data root that is not there yet, in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GNNHPC_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["data", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def publish(monkeypatch: pytest.MonkeyPatch, name: str, downloads: list[Download]) -> None:
    row = PUBLISHED[name]
    files = dataclasses.replace(row.files, downloads=tuple(downloads))
    monkeypatch.setitem(PUBLISHED, name, dataclasses.replace(row, files=files))


@pytest.fixture
def cora(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a site that publishes a small Cora, file by file."""
    set_facts(monkeypatch, "cora", graph_sizes(700, 4_182, 40, 3))
    site = write_planetoid(tmp_path / "site", "Cora")
    names = PUBLISHED["cora"].files.names
    publish(monkeypatch, "cora", [Download(f"{server}/Cora/raw/{n}", n) for n in names])
    return site


def test_list_says_what_there_is_and_where(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_planetoid(root, "Cora")
    write_planetoid(root, "CiteSeer")
    (root / "CiteSeer" / "raw" / "ind.citeseer.tx").unlink()
    status, out, err = run(capsys, "list")
    assert (status, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines.keys() == DATA.keys() | {"name"}
    assert str(root) in lines["name"]
    cora = "2,708 nodes, 10,556 edges, 1,433 features, 7 classes"
    assert re.search(rf"graph +{cora} +{root}/Cora/raw$", lines["cora"])
    assert lines["citeseer"].endswith("CiteSeer/raw, without 1 of 8 files")
    assert lines["reddit"].endswith("not here")
    assert lines["synthetic-citation"].endswith("synthetic")
    assert "50,000 + 10,000 of 32 x 32, 10 classes" in lines["cifar10"]


def test_files_are_downloaded_one_by_one_and_checked(
    cora: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = root / "Cora" / "raw"
    status, out, err = run(capsys, "get", "cora")
    assert (status, out) == (0, f"cora is here: {raw}\n")
    assert err.count("fetching http") == 8
    digest = hashlib.sha256((cora / "ind.cora.x").read_bytes()).hexdigest()
    assert f"{digest}  ind.cora.x\n" in (raw / "SHA256SUMS").read_text()
    status, out, _ = run(capsys, "check", "cora")
    assert status == 0, out
    assert out.startswith("cora: the loaded arrays are those of an independent reader; files as re")
    # A missing file is downloaded alone, and compared with the record.
    (raw / "ind.cora.allx").unlink()
    status, out, _ = run(capsys, "check", "cora")
    assert (status, out) == (1, "cora: without ind.cora.allx; `gnnhpc data get cora`\n")
    (cora / "ind.cora.allx").write_bytes(b"other")
    assert run(capsys, "get", "cora")[2].count("fetching http") == 1
    status, out, _ = run(capsys, "check", "cora")
    assert status == 1
    assert "cora: damaged: ind.cora.allx in " in out


def test_a_failure_adds_nothing(cora: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cora / "ind.cora.graph").unlink()
    status, out, err = run(capsys, "get", "cora")
    assert (status, out) == (1, "")
    failure = (
        r"failed: data cora: http://127\.0.*ind.cora.graph cannot be fetched \(404.*; nothing "
    )
    assert re.match(failure + "was added. Run `gnnhpc data get cora` where", err.splitlines()[-1])
    assert not (root / "Cora" / "raw").exists()


def zipped(folder: Path) -> bytes:
    """A zip of a folder, under the name of its own that archives have."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(path, f"arxiv/{path.relative_to(folder)}")
    return content.getvalue()


def test_archives_of_ogb(
    tmp_path: Path,
    server: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_facts(monkeypatch, "ogbn-arxiv", graph_sizes(30, 60, 5, 4))
    (real,) = PUBLISHED["ogbn-arxiv"].files.downloads
    publish(monkeypatch, "ogbn-arxiv", [dataclasses.replace(real, url=f"{server}/arxiv.zip")])
    for content, message in (
        (b"no zip", "cannot be fetched (File is not a zip file"),
        (zipped(Path(__file__).parent), "has no raw/edge.csv.gz, raw/node-label.csv.gz"),
    ):
        (tmp_path / "site" / "arxiv.zip").write_bytes(content)
        status, _, err = run(capsys, "get", "ogbn-arxiv")
        assert (status, message in err, (root / "ogbn_arxiv").exists()) == (1, True, False)
    write_ogb(tmp_path / "made", "time", nodes=30, columns=5, classes=4)
    (tmp_path / "site" / "arxiv.zip").write_bytes(zipped(tmp_path / "made"))
    assert run(capsys, "get", "ogbn-arxiv")[0] == run(capsys, "check", "ogbn-arxiv")[0] == 0


def test_images_with_their_published_checksum(
    tmp_path: Path,
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    archive = cifar_archive(tmp_path / "site", server)
    monkeypatch.setattr(data_settings, "CIFAR_ARCHIVE", dataclasses.replace(archive, md5="0" * 32))
    status, _, err = run(capsys, "get", "cifar10")
    assert (status, "does not match the known hash" in err) == (1, True)
    monkeypatch.setattr(data_settings, "CIFAR_ARCHIVE", archive)
    assert run(capsys, "get", "cifar10")[0] == run(capsys, "check", "cifar10")[0] == 0


def test_files_copied_by_hand_are_recorded_by_the_first_check(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, raw = "amazon_electronics_photo.npz", root / "Photo" / "raw"
    set_facts(monkeypatch, "photo", graph_sizes(240, 5_600, 20, 4))
    write_npz(raw, file, nodes=240, columns=20, classes=4)
    assert "1 digests are now in " in run(capsys, "check", "photo")[1]
    assert "; files as recorded in SHA256SUMS" in run(capsys, "check", "photo")[1]
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], check=True, cwd=raw)
    (raw / file).write_bytes(b"short")
    damaged = f"photo: damaged: {file} in {raw} differs from SHA256SUMS beside it\n"
    assert run(capsys, "check", "photo")[:2] == (1, damaged)
    (raw / "SHA256SUMS").unlink()
    np.savez(root / "good.npz", **custom_arrays())
    status, out, _ = run(capsys, "check", "photo", str(root / "good.npz"))
    photo, good = out.splitlines()
    assert status == 1
    assert photo.startswith("photo: damaged: ")
    assert "good.npz: the loaded arrays" in good
    assert not (raw / "SHA256SUMS").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get", "imagenet"], "error: data: found 'imagenet'; allowed: actor, amazon-ratings, "),
        (["get", "synthetic-citation"], "error: data synthetic-citation: found no files to down"),
        (["get", "reddit10k"], "error: data reddit10k: found no files to download; allowed: the f"),
        (["check", "file"], "error: data: found 'file'; allowed: "),
        (["check", "nowhere.npz"], "error: "),
        (["get", "cora", "--data-root", "a-file"], "error: "),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a-file").touch()
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_listing_imports_neither_torch_nor_numpy() -> None:
    code = "import sys; from gnnhpc.cli import main; main(['data', 'list']); "
    code += "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_flag_beats_variable_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GNNHPC_DATA")
    assert cache_root() == tmp_path / "cache"
    assert data_root(None) is None
    (tmp_path / "cache" / "data").mkdir(parents=True)
    assert data_root(None) == tmp_path / "cache" / "data"
    (tmp_path / "data").mkdir()
    assert data_root(None) == tmp_path / "data"
    monkeypatch.setenv("GNNHPC_DATA", "from-variable")
    assert data_root(None) == tmp_path / "from-variable"
    assert data_root("from-flag") == tmp_path / "from-flag"
    assert data_root("~/x") == Path.home() / "x"


@pytest.mark.parametrize("config", [Cifar10(), PublishedGraph(name="cora")])
def test_planning_names_what_is_missing(config: Cifar10 | PublishedGraph, tmp_path: Path) -> None:
    places = r"--data-root, data_root in the spec or \$GNNHPC_DATA, else \S+ or \S+/data, which"
    how = f"`gnnhpc data get {config.name}`"
    for root, found in ((None, "none"), (tmp_path / "nowhere", "no folder that may be read: .*")):
        with pytest.raises(InputError, match=f"data root: found {found}; .*{places} {how}"):
            config.check(root)
    with pytest.raises(InputError, match=f"allowed: {how}"):
        config.check(tmp_path)
