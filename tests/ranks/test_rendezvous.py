"""Ranks find the store past ports in use and other programs that listen or connect there."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.ranks.rendezvous import (
    CANDIDATES,
    StorePortServer,
    candidate_ports,
    find_store_port,
)

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
def port_server(key: str, store_port: int) -> Iterator[StorePortServer]:
    server = StorePortServer(key, store_port)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def other_program(port: int, answer: bytes | None = None) -> Iterator[None]:
    """Another program's socket: bound only, or listening and sending `answer` to who connects."""
    with socket.socket() as taken:
        taken.bind(("", port))
        if answer is None:
            yield
            return
        taken.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = taken.accept()
                    with connection:
                        connection.recv(1000)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            taken.shutdown(socket.SHUT_RDWR)
            thread.join()


def answer_at(key: str, says: bytes) -> bytes:
    """The answer to `says` of the first server that listens at a port of `key`."""
    for port in candidate_ports(key):
        with contextlib.suppress(ConnectionRefusedError):
            connection = socket.create_connection((HERE, port), 60)
            break
    with connection:
        try:
            connection.sendall(says)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(1000)
        except TimeoutError:
            raise
        except OSError:
            # Closed before all was sent: reset, or no longer connected.
            return b""


def test_ports_are_the_jobs_own_and_below_the_ephemeral_range(key: str) -> None:
    ports = candidate_ports(key)
    assert ports == candidate_ports(key) != candidate_ports(key + "x")
    assert len(ports) == CANDIDATES
    assert all(20_000 <= port < 32_000 for port in ports)


def test_a_rank_is_told_where_the_store_is(key: str) -> None:
    with port_server(key, 4321):
        assert [find_store_port(HERE, key, 30) for _ in range(3)] == [4321] * 3


def test_a_rank_that_comes_first_waits_for_the_server(key: str) -> None:
    found: list[int] = []
    early = threading.Thread(target=lambda: found.append(find_store_port(HERE, key, 60)))
    early.start()
    with port_server(key, 77):
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
def test_other_programs_on_the_first_ports_are_skipped(key: str, answer: bytes | None) -> None:
    first, second = candidate_ports(key)[:2]
    with other_program(first, answer), other_program(second, answer), port_server(key, 4321):
        assert find_store_port(HERE, key, 60) == 4321


def test_a_program_that_answers_nothing_does_not_hold_a_rank(key: str) -> None:
    with socket.socket() as silent:
        silent.bind(("", candidate_ports(key)[0]))
        silent.listen()
        with port_server(key, 4321):
            assert find_store_port(HERE, key, 60) == 4321


@pytest.mark.parametrize(
    "says", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\x00\n", b"\n", b"", b"x" * 100_000]
)
def test_programs_without_the_key_get_no_answer_and_break_nothing(key: str, says: bytes) -> None:
    with port_server(key, 4321):
        assert answer_at(key, says) == b""
        assert find_store_port(HERE, key, 60) == 4321


def test_two_jobs_on_one_node_do_not_mix(key: str) -> None:
    """The second finds the first at its own first port, and goes on to the next."""
    with (
        other_program(candidate_ports(key)[0]),
        port_server(key, 1),
        port_server(key + "-other", 2),
    ):
        assert find_store_port(HERE, key, 60) == 1
        assert find_store_port(HERE, key + "-other", 60) == 2


def test_a_closed_server_no_longer_answers(key: str) -> None:
    server = StorePortServer(key, 1)
    server.close()
    with pytest.raises(GnnhpcError):
        find_store_port(HERE, key, 0.3)


def test_nobody_there_is_an_error_that_says_where_was_looked(key: str) -> None:
    port = candidate_ports(key)[0]
    with pytest.raises(GnnhpcError) as failed:
        find_store_port(HERE, key, 0.4)
    said = f"rendezvous: rank 0 did not answer at {HERE} within 0 s (job {key}, ports {port}, "
    assert str(failed.value).startswith(said)


def test_no_free_port_names_the_way_out(key: str) -> None:
    with contextlib.ExitStack() as taken:
        for port in set(candidate_ports(key)):
            with contextlib.suppress(OSError):
                taken.enter_context(other_program(port))
        with pytest.raises(GnnhpcError, match=r"no free port among \[.*\]; set MASTER_PORT to one"):
            StorePortServer(key, 1)


def test_many_ranks_at_once(key: str) -> None:
    with port_server(key, 9), ThreadPoolExecutor(32) as ranks:
        assert list(ranks.map(lambda _: find_store_port(HERE, key, 60), range(32))) == [9] * 32
