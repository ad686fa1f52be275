"""Ranks find the store past ports in use and strangers, and tell and believe no one else."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.distributed.addresses import listen
from gnnhpc.distributed.rendezvous import (
    CANDIDATES,
    StorePlace,
    StorePortServer,
    candidate_ports,
    find_store,
)
from gnnhpc.distributed.secret import Secret
from tests.distributed.listening import needs_ipv6

HERE = "127.0.0.1"
KEY = "slurm-1234.0.0"
"""What everybody on the cluster knows of a job."""


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


@pytest.fixture
def secret() -> Secret:
    """A run of its own whose ports are free: earlier visits hold theirs for a minute."""
    while True:
        secret = Secret(secrets.token_bytes(32))
        if all(is_free(port) for port in candidate_ports(secret, KEY)[:3]):
            return secret


@contextlib.contextmanager
def port_server(
    secret: Secret,
    port: int,
    key: str = KEY,
    address: str | None = HERE,
    listens: Sequence[str | None] = (HERE,),
) -> Iterator[StorePortServer]:
    server = StorePortServer(secret, key, StorePlace(address, port), listens)
    try:
        yield server
    finally:
        server.close()


def find(secret: Secret, key: str = KEY, patience_s: float = 60) -> int:
    return find_store([HERE], secret, key, patience_s).port


Talk = Callable[[socket.socket], None]


@contextlib.contextmanager
def stranger(port: int, talk: Talk | None = None) -> Iterator[None]:
    """Another program's socket: bound only, or listening and talking to who connects."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, talk is not None)
        taken.bind(("", port))
        if talk is None:
            yield
            return
        taken.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = taken.accept()
                    with connection, contextlib.suppress(OSError):
                        talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            taken.shutdown(socket.SHUT_RDWR)
            thread.join()


def saying(*answers: bytes) -> Talk:
    """Sends each answer, after the first only once something was said."""

    def talk(connection: socket.socket) -> None:
        connection.settimeout(5)
        for number, answer in enumerate(answers):
            if number:
                connection.recv(4096)
            connection.sendall(answer)

    return talk


def line(*texts: object) -> bytes:
    return json.dumps(texts).encode() + b"\n"


def test_ports_are_the_jobs_own_and_below_the_ephemeral_range(secret: Secret) -> None:
    ports = candidate_ports(secret, KEY)
    assert ports == candidate_ports(secret, KEY) != candidate_ports(secret, KEY + "x")
    assert len(ports) == CANDIDATES
    assert all(20_000 <= port < 32_000 for port in ports)


def test_who_knows_only_the_jobs_id_cannot_tell_its_ports(secret: Secret) -> None:
    other = Secret(secrets.token_bytes(32))
    assert candidate_ports(secret, KEY) != candidate_ports(other, KEY)


def test_a_rank_is_told_where_the_store_is(secret: Secret) -> None:
    with port_server(secret, 4321, address="10.1.2.3"):
        for _ in range(3):
            assert find_store([HERE], secret, KEY, 30) == StorePlace("10.1.2.3", 4321)


def test_a_store_that_listens_everywhere_is_where_its_rank_was_found(secret: Secret) -> None:
    with port_server(secret, 4321, address=None, listens=[None]):
        assert find_store([HERE], secret, KEY, 30) == StorePlace(HERE, 4321)


def test_a_rank_that_comes_first_waits_for_the_server(secret: Secret) -> None:
    found: list[int] = []
    early = threading.Thread(target=lambda: found.append(find(secret)))
    early.start()
    with port_server(secret, 77):
        early.join()
    assert found == [77]


def asks_without_the_secret(port: int, how: Callable[[str], bytes]) -> bytes:
    """What a server at this port says after its first line to who answers that line like this."""
    with socket.create_connection((HERE, port), 60) as connection:
        connection.settimeout(60)
        stream = connection.makefile("rb")
        (theirs,) = json.loads(stream.readline())
        try:
            connection.sendall(how(theirs))
            connection.shutdown(socket.SHUT_WR)
            return stream.read(4096)
        except TimeoutError:
            raise
        except OSError:
            # Closed before all was read.
            return b""


STRANGER = Secret(bytes(32))
NONCE = "0" * 32
QUESTIONS: dict[str, Callable[[str], bytes]] = {
    "the job's id": lambda _: KEY.encode() + b"\n",
    "a browser": lambda _: b"GET / HTTP/1.1\r\n\r\n",
    "no text": lambda _: b"\xff\xfe\x00\n",
    "an empty line": lambda _: b"\n",
    "nothing": lambda _: b"",
    "too much": lambda _: b"x" * 100_000,
    "too deep": lambda _: b"[" * 4000 + b"\n",
    "numbers": lambda _: b"[1, 2]\n",
    "too few": line,
    "another secret": lambda theirs: line(NONCE, STRANGER.proof("asks", KEY, 1, theirs, NONCE)),
    "no proof": lambda theirs: line(NONCE, ""),
    "letters that are not ASCII": lambda theirs: line(NONCE, "ä" * 64),
}


@pytest.mark.parametrize("how", QUESTIONS)
def test_who_knows_only_the_jobs_id_is_told_nothing(secret: Secret, how: str) -> None:
    with port_server(secret, 4321) as server:
        assert asks_without_the_secret(server.port, QUESTIONS[how]) == b""
        assert find(secret) == 4321


def test_a_proof_holds_once_and_for_one_port(secret: Secret) -> None:
    """Who has listened to a rank can neither say the same again nor pass it on."""
    with port_server(secret, 4321) as server:

        def right(theirs: str, port: int = server.port) -> bytes:
            return line(NONCE, secret.proof("asks", KEY, port, theirs, NONCE))

        heard: list[bytes] = []
        answer = asks_without_the_secret(server.port, lambda n: heard.append(right(n)) or heard[0])
        assert json.loads(json.loads(answer)[0]) == [HERE, 4321]
        assert asks_without_the_secret(server.port, lambda _: heard[0]) == b""
        assert asks_without_the_secret(server.port, lambda n: right(n, server.port + 1)) == b""


STORE = json.dumps([HERE, 1])
ANSWERS: dict[str, tuple[bytes, ...]] = {
    "nothing": (b"",),
    "a mail server": (b"SSH-2.0-OpenSSH\r\n",),
    "no text": (b"\xff\xfe\x00\n",),
    "no list": (b'{"key": "slurm-1234.0.0", "port": 1}\n',),
    "a number": (b"[1]\n", b"[1, 1]\n"),
    "without a proof": (line(NONCE), line(STORE, "")),
    "with another secret": (line(NONCE), line(STORE, STRANGER.proof("tells", KEY, STORE))),
    "too deep": (b"[" * 4000 + b"\n",),
}


@pytest.mark.parametrize("answer", [None, *ANSWERS])
def test_strangers_on_the_first_ports_are_not_believed(secret: Secret, answer: str | None) -> None:
    first, second = candidate_ports(secret, KEY)[:2]
    talk = None if answer is None else saying(*ANSWERS[answer])
    with stranger(first, talk), stranger(second, talk), port_server(secret, 4321):
        assert find(secret) == 4321


def test_who_sends_a_ranks_own_words_back_is_not_believed(secret: Secret) -> None:
    """A proof says which side it is of."""

    def mirror(connection: socket.socket) -> None:
        connection.settimeout(5)
        connection.sendall(line(NONCE))
        _, proof = json.loads(connection.recv(4096))
        connection.sendall(line(STORE, proof))

    with stranger(candidate_ports(secret, KEY)[0], mirror), port_server(secret, 4321):
        assert find(secret) == 4321


def test_who_stands_between_the_ranks_gets_nothing_through(secret: Secret) -> None:
    """A program on the first port hands each word on to the server, which is on the second."""
    first = candidate_ports(secret, KEY)[0]
    passed: list[bytes] = []
    with stranger(first):
        server = StorePortServer(secret, KEY, StorePlace(HERE, 4321), [HERE])

    def relay(connection: socket.socket) -> None:
        connection.settimeout(5)
        with socket.create_connection((HERE, server.port), 5) as behind:
            connection.sendall(behind.recv(4096))
            behind.sendall(connection.recv(4096))
            passed.append(behind.recv(4096))
            connection.sendall(passed[-1])

    try:
        with stranger(first, relay):
            assert find(secret) == 4321
    finally:
        server.close()
    assert passed
    assert not any(passed)


def test_who_changes_the_place_of_the_store_on_its_way_is_not_believed(secret: Secret) -> None:
    """A program at another address of the host, with the port of the server."""
    passed: list[bytes] = []
    with port_server(secret, 4321) as server, listen("127.0.0.2", server.port) as between:

        def relay() -> None:
            behind = socket.create_connection((HERE, server.port), 5)
            with contextlib.suppress(OSError), between.accept()[0] as connection, behind:
                connection.sendall(behind.recv(4096))
                behind.sendall(connection.recv(4096))
                passed.append(behind.recv(4096))
                connection.sendall(passed[-1].replace(b"4321", b"4322"))

        thread = threading.Thread(target=relay)
        thread.start()
        with pytest.raises(GnnhpcError):
            find_store(["127.0.0.2"], secret, KEY, 0.5)
        thread.join()
    assert b"4321" in passed[0]


def test_a_program_that_says_nothing_does_not_hold_a_rank(secret: Secret) -> None:
    with socket.socket() as silent:
        silent.bind(("", candidate_ports(secret, KEY)[0]))
        silent.listen()
        with port_server(secret, 4321):
            assert find(secret) == 4321


def test_a_program_that_asks_nothing_does_not_hold_the_server(secret: Secret) -> None:
    with port_server(secret, 4321) as server, contextlib.ExitStack() as silent:
        for _ in range(20):
            silent.enter_context(socket.create_connection((HERE, server.port), 60))
        assert find(secret, patience_s=30) == 4321


def test_two_jobs_of_a_run_on_one_node_do_not_mix(secret: Secret) -> None:
    """Each finds its own, also where the first ports of both are taken."""
    other = "slurm-1235.0.0"
    with (
        stranger(candidate_ports(secret, KEY)[0]),
        stranger(candidate_ports(secret, other)[0]),
        port_server(secret, 1),
        port_server(secret, 2, other),
    ):
        assert find(secret) == 1
        assert find(secret, other) == 2


def test_jobs_of_one_id_and_different_runs_do_not_mix(secret: Secret) -> None:
    other = Secret(secrets.token_bytes(32))
    with port_server(secret, 1), port_server(other, 2):
        assert find(secret) == 1
        assert find(other) == 2


def test_a_server_listens_where_it_is_told_to_and_nowhere_else(secret: Secret) -> None:
    with port_server(secret, 1, listens=["127.0.0.1", "127.0.0.3"]) as server:
        for address in ("127.0.0.1", "127.0.0.3"):
            assert find_store([address], secret, KEY, 60).port == 1
        for address in ("127.0.0.2", "::1"):
            with pytest.raises(OSError, match=r"\[Errno"):
                socket.create_connection((address, server.port), 60)


@needs_ipv6
def test_by_ipv6_alone(secret: Secret) -> None:
    with port_server(secret, 5, address="::1", listens=["::1"]) as server:
        assert find_store(["::1"], secret, KEY, 60) == StorePlace("::1", 5)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HERE, server.port), 60)


def test_a_closed_server_no_longer_answers(secret: Secret) -> None:
    server = StorePortServer(secret, KEY, StorePlace(HERE, 1), [HERE])
    server.close()
    with pytest.raises(GnnhpcError):
        find(secret, patience_s=0.3)


def test_nobody_there_is_an_error_that_says_where_was_looked(secret: Secret) -> None:
    port = candidate_ports(secret, KEY)[0]
    with pytest.raises(GnnhpcError) as failed:
        find(secret, patience_s=0.4)
    said = f"rendezvous: rank 0 did not answer at {HERE} within 0 s (job {KEY}, ports {port}, "
    assert str(failed.value).startswith(said)


def test_no_free_port_names_the_way_out(secret: Secret) -> None:
    with contextlib.ExitStack() as taken:
        for port in set(candidate_ports(secret, KEY)):
            # Where this fails somebody else listens.
            with contextlib.suppress(OSError):
                taken.enter_context(socket.create_server(("", port)))
        with pytest.raises(GnnhpcError, match=r"no free port among \[.*\]; set MASTER_PORT to one"):
            StorePortServer(secret, KEY, StorePlace(HERE, 1), [HERE])


def test_a_port_must_be_free_at_every_address(secret: Secret) -> None:
    first, second = candidate_ports(secret, KEY)[:2]
    taken = listen("127.0.0.3", first)
    with taken, port_server(secret, 1, listens=["127.0.0.1", "127.0.0.3"]) as server:
        assert server.port == second


def test_many_ranks_at_once(secret: Secret) -> None:
    with port_server(secret, 9), ThreadPoolExecutor(64) as ranks:
        assert list(ranks.map(lambda _: find(secret), range(64))) == [9] * 64


def test_what_is_said_does_not_hold_the_secret() -> None:
    key = secrets.token_bytes(32)
    secret, heard = Secret(key), []

    def listens(connection: socket.socket) -> None:
        connection.settimeout(5)
        connection.sendall(line(NONCE))
        heard.append(connection.recv(4096))

    with stranger(candidate_ports(secret, KEY)[0], listens), pytest.raises(GnnhpcError):
        find(secret, patience_s=0.5)
    assert heard
    assert re.fullmatch(rb'\["[0-9a-f]{32}", "[0-9a-f]{64}"\]\n', heard[0])
    assert key.hex().encode() not in heard[0]
    assert key.hex() not in repr(secret) + str(vars(StorePlace(HERE, 1)))
