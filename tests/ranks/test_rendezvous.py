"""Ranks find each other past ports that are taken and strangers who listen or knock there."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.ranks.rendezvous import CANDIDATES, Doorkeeper, candidate_ports, knock

HERE = "127.0.0.1"


@pytest.fixture
def key() -> str:
    """A job of its own whose ports are free: earlier visits hold theirs for a minute."""
    while True:
        key = f"test-{uuid.uuid4()}"
        if all(is_free(port) for port in candidate_ports(key)[:3]):
            return key


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def door(key: str, store_port: int) -> Iterator[Doorkeeper]:
    keeper = Doorkeeper(key, store_port)
    try:
        yield keeper
    finally:
        keeper.close()


@contextlib.contextmanager
def stranger(port: int, answer: bytes | None = None) -> Iterator[None]:
    """Somebody else's socket: bound only, or listening and saying `answer` to who comes."""
    with socket.socket() as taken:
        taken.bind(("", port))
        if answer is None:
            yield
            return
        taken.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    visitor, _ = taken.accept()
                    with visitor:
                        visitor.recv(1000)
                        visitor.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            taken.shutdown(socket.SHUT_RDWR)
            thread.join()


def answer_at(key: str, says: bytes) -> bytes:
    """What whoever listens first for `key` gives a visitor who says this."""
    for port in candidate_ports(key):
        with contextlib.suppress(ConnectionRefusedError):
            visit = socket.create_connection((HERE, port), 60)
            break
    with visit:
        try:
            visit.sendall(says)
            visit.shutdown(socket.SHUT_WR)
            return visit.recv(1000)
        except TimeoutError:
            raise
        except OSError:
            # Shown the door before all was said: reset, or no longer connected.
            return b""


def test_ports_are_the_jobs_own_and_below_the_ephemeral_range(key: str) -> None:
    ports = candidate_ports(key)
    assert ports == candidate_ports(key) != candidate_ports(key + "x")
    assert len(ports) == CANDIDATES
    assert all(20_000 <= port < 32_000 for port in ports)


def test_a_rank_is_told_where_the_store_is(key: str) -> None:
    with door(key, 4321):
        assert [knock(HERE, key, 30) for _ in range(3)] == [4321] * 3


def test_a_rank_that_comes_first_waits_for_the_door(key: str) -> None:
    found: list[int] = []
    early = threading.Thread(target=lambda: found.append(knock(HERE, key, 60)))
    early.start()
    with door(key, 77):
        early.join()
    assert found == [77]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"\xff\xfe\x00\n",
        b"[1]\n",
        b'{"port": 1}\n',
        b'{"key": "another", "port": 1}\n',
    ],
)
def test_strangers_on_the_first_ports_are_passed_by(key: str, answer: bytes | None) -> None:
    first, second = candidate_ports(key)[:2]
    with stranger(first, answer), stranger(second, answer), door(key, 4321):
        assert knock(HERE, key, 60) == 4321


def test_a_stranger_who_says_nothing_does_not_hold_a_rank(key: str) -> None:
    with socket.socket() as silent:
        silent.bind(("", candidate_ports(key)[0]))
        silent.listen()
        with door(key, 4321):
            assert knock(HERE, key, 60) == 4321


@pytest.mark.parametrize(
    "says", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\x00\n", b"\n", b"", b"x" * 100_000]
)
def test_visitors_without_the_key_learn_nothing_and_break_nothing(key: str, says: bytes) -> None:
    with door(key, 4321):
        assert answer_at(key, says) == b""
        assert knock(HERE, key, 60) == 4321


def test_two_jobs_on_one_node_do_not_mix(key: str) -> None:
    """The second finds the first at its own first port, and goes on to the next."""
    with stranger(candidate_ports(key)[0]), door(key, 1), door(key + "-other", 2):
        assert knock(HERE, key, 60) == 1
        assert knock(HERE, key + "-other", 60) == 2


def test_a_closed_door_is_closed(key: str) -> None:
    keeper = Doorkeeper(key, 1)
    keeper.close()
    with pytest.raises(GnnhpcError):
        knock(HERE, key, 0.3)


def test_nobody_there_is_an_error_that_says_where_was_looked(key: str) -> None:
    port = candidate_ports(key)[0]
    with pytest.raises(GnnhpcError) as failed:
        knock(HERE, key, 0.4)
    said = f"rendezvous: rank 0 did not answer at {HERE} within 0 s (job {key}, ports {port}, "
    assert str(failed.value).startswith(said)


def test_no_free_port_names_the_way_out(key: str) -> None:
    with contextlib.ExitStack() as taken:
        for port in set(candidate_ports(key)):
            with contextlib.suppress(OSError):
                taken.enter_context(stranger(port))
        with pytest.raises(GnnhpcError, match=r"no free port among \[.*\]; set MASTER_PORT to one"):
            Doorkeeper(key, 1)


def test_many_ranks_at_once(key: str) -> None:
    with door(key, 9), ThreadPoolExecutor(32) as ranks:
        assert list(ranks.map(lambda _: knock(HERE, key, 60), range(32))) == [9] * 32
