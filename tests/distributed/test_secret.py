"""The secret of a run: made once, for its user alone, and said by nobody."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.distributed.secret import (
    Secret,
    make_secret,
    read_secret,
    secret_of_user,
    shared_secret,
)

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / ".private" / "rendezvous"


@pytest.fixture
def somebody_else(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Become another user, where this one is root; the test's folder may be entered by all."""
    if os.geteuid():
        pytest.skip("needs root, to be another user for a moment")
    # Up to the first that all may enter: tests that run two at a time have a level more.
    for folder in itertools.takewhile(is_private, (tmp_path, *tmp_path.parents)):
        folder.chmod(0o755)
    yield lambda: os.seteuid(NOBODY)
    os.seteuid(0)


def is_private(folder: Path) -> bool:
    return folder.stat().st_mode & 0o005 != 0o005


def read(path: Path) -> Secret:
    secret = read_secret(path)
    assert secret is not None
    return secret


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_nobody_else_may_read_it_or_see_that_it_is_there(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_secret(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_runs_have_secrets_of_their_own_and_keep_them(path: Path, tmp_path: Path) -> None:
    make_secret(path)
    first = read(path).proof("a")
    make_secret(path)
    assert read(path).proof("a") == first
    make_secret(tmp_path / "another")
    assert read(tmp_path / "another").proof("a") != first


def test_of_many_made_at_once_all_get_the_same(path: Path) -> None:
    with ThreadPoolExecutor(16) as ranks:
        found = ranks.map(lambda _: shared_secret(path, makes=True, timeout_s=60), range(16))
        assert len({secret.proof("a") for secret in found}) == 1
    assert list(path.parent.iterdir()) == [path]


def test_others_wait_for_rank_0_to_make_it(path: Path) -> None:
    with ThreadPoolExecutor(1) as ranks:
        waits = ranks.submit(shared_secret, path, makes=False, timeout_s=60)
        made = shared_secret(path, makes=True, timeout_s=60)
        assert waits.result().proof("a") == made.proof("a")


def test_where_none_is_made_they_say_so(path: Path) -> None:
    with pytest.raises(GnnhpcError, match=r"rendezvous: .*/rendezvous was not there within 0 s"):
        shared_secret(path, makes=False, timeout_s=0.2)
    assert not path.parent.exists()


def test_another_users_secret_is_one_line_that_says_what_to_do(
    path: Path, somebody_else: Callable[[], None]
) -> None:
    make_secret(path)
    somebody_else()
    with pytest.raises(InputError) as refused:
        shared_secret(path, makes=True, timeout_s=1)
    assert str(refused.value) == (
        f"{path}: found unreadable (Permission denied); allowed: a run of one's own: copy it "
        "without .private/, which a job makes"
    )


def test_a_folder_that_may_not_be_written_is_named(
    path: Path, somebody_else: Callable[[], None]
) -> None:
    path.parent.parent.mkdir()
    somebody_else()
    with pytest.raises(InputError, match=r"not there, and cannot be made \(Permission denied\)"):
        shared_secret(path, makes=True, timeout_s=1)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_secret_that_others_may_read_is_none(path: Path, mode: int) -> None:
    """As after a copy that gave every file the same mode."""
    make_secret(path)
    path.chmod(mode)
    said = rf"found mode {mode:04o}, open to others; allowed: 0600; remove it"
    with pytest.raises(InputError, match=said):
        read_secret(path)


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 66, "x" * 64, "ä", "0" * 1000])
def test_a_damaged_secret_is_named_and_not_shown(path: Path, text: str) -> None:
    make_secret(path)
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_secret(path)
    said = "found something else; allowed: 64 hexadecimal digits; remove it, and the next job makes"
    assert said in str(refused.value)
    assert "000" not in str(refused.value)


def test_no_text_shows_it(path: Path) -> None:
    make_secret(path)
    secret = read(path)
    text = path.read_text().strip()
    assert text not in repr(secret) + str(secret)


def test_parts_of_a_proof_are_kept_apart() -> None:
    secret = Secret(b"k" * 32)
    assert secret.proof("ab", "c") != secret.proof("a", "bc")
    assert secret.proof("1") != secret.proof(1)
    assert secret.proves(secret.proof("a", 1), "a", 1)
    assert not secret.proves("", "a", 1)
    assert not secret.proves("ä", "a", 1)


def test_ranks_without_a_run_share_their_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = secret_of_user()
    assert path.is_relative_to(tmp_path)
    shared_secret(path, makes=True, timeout_s=1)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
