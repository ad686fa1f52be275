"""Downloads that end early, and archives whose names lead elsewhere."""

from __future__ import annotations

import http.server
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnhpc.data.fetch.atomic_folder import adding
from gnnhpc.data.fetch.download import DownloadError, download
from gnnhpc.data.files import Download


@pytest.fixture
def broken_site() -> Iterator[str]:
    """A site that promises 100 bytes and sends ten."""

    class Broken(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"ten bytes.")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken) as site:
        thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()
        thread.join()


def test_an_early_end_is_no_file(broken_site: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="10"):
        download(Download(f"{broken_site}/x", "x"), tmp_path)


def test_progress_is_told(server: str, tmp_path: Path) -> None:
    (tmp_path / "site" / "x").write_bytes(b"0123456789")
    told: list[tuple[int, int | None]] = []
    download(Download(f"{server}/x", "deep/x"), tmp_path, lambda *count: told.append(count))
    assert told[-1] == (10, 10)
    assert (tmp_path / "deep" / "x").read_bytes() == b"0123456789"


def test_names_that_lead_out_of_an_archive_stay_inside(server: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "site" / "x.zip", "w") as archive:
        for name in ("top/inner/a", "top/../../b", "/c", "alone"):
            archive.writestr(name, name)
    target = tmp_path / "target"
    target.mkdir()
    download(Download(f"{server}/x.zip", archive="zip", strip=1), target)
    names = sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file())
    assert names == ["alone", "b", "c", "inner/a"]


def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "old").write_text("old")
    with adding(target) as temporary:
        (temporary / "inner").mkdir()
        for name in ("old", "inner/new"):
            (temporary / name).write_text("new")
    assert (target / "old").read_text() == "old"
    assert (target / "inner" / "new").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".folder.lock", "folder"]


def test_an_exception_adds_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), adding(tmp_path / "folder") as temporary:
        (temporary / "half").touch()
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == [".folder.lock"]
