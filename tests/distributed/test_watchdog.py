"""Real ranks that hang, stop, and merely compute: the watchdog names the right one, or nobody."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.distributed import watchdog
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.mesh import Mesh, join, leave
from gnnhpc.distributed.watchdog import PROCESSES, VARIABLE, hang_seconds, watching
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.kernels import compile as compiling
from gnnhpc.kernels.compile import load_kernel
from tests.tools.forked import spawn

Verdicts = list[tuple[int, str]]
RANKS = 3
PATIENCE_S = 2.0


class Scene:
    """One scene on one rank: a timer that is watched, and where the verdicts are told."""

    def __init__(self, mesh: Mesh, pids: list[int], folder: Path) -> None:
        self.mesh = mesh
        self.pids = pids
        self.folder = folder
        self.timer = StepTimer(torch.device("cpu"))
        self.verdicts: Verdicts = []

    def tell(self, rank: int, why: str) -> None:
        self.verdicts.append((rank, why))
        (self.folder / f"told-{self.mesh.rank}").touch()

    def until_told(self, *ranks: int) -> None:
        """Wait, without computing, until the watchdogs of these ranks have spoken."""
        while not all((self.folder / f"told-{rank}").exists() for rank in ranks):
            time.sleep(0.05)

    def meet(self) -> None:
        with self.timer.span("wait"):
            self.mesh.barrier()

    def stop_until_told(self, *ranks: int) -> None:
        """Stop this whole process once its words are known; a small one starts it again."""
        known, store = f'"doing": "{self.timer.doing}"', self.mesh.store
        while known not in store.get(f"watchdog/{self.mesh.rank}").decode():
            time.sleep(0.05)
        # As long again as the other ranks need to have read them.
        time.sleep(2 * watchdog._EVERY_S)
        waits = " && ".join(f"[ -e told-{rank} ]" for rank in ranks)
        script = f"until {waits}; do sleep 0.1; done; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", script], cwd=self.folder)
        os.kill(os.getpid(), signal.SIGSTOP)


def long_computation(scene: Scene) -> None:
    """Rank 1 takes twice the patience; nobody hears of its work in between."""
    if scene.mesh.rank == 1:
        with scene.timer.span("forward", 0):
            end = time.monotonic() + 2 * PATIENCE_S
            values = torch.ones(200, 200)
            while time.monotonic() < end:
                values = values @ values / 200
    scene.meet()


def long_computation_of_a_worker(scene: Scene) -> None:
    """Rank 1 waits for a process of its own that takes twice the patience."""
    if scene.mesh.rank == 1:
        with scene.timer.storage("drawing a mini-batch"):
            script = f"import time\nend = time.time() + {2 * PATIENCE_S}\n"
            subprocess.run(
                [sys.executable, "-c", script + "while time.time() < end: 1"], check=True
            )
    scene.meet()


def slow_storage(scene: Scene) -> None:
    """Rank 2 waits for its disk for twice the patience."""
    if scene.mesh.rank == 2:
        with scene.timer.storage("writing a checkpoint"):
            time.sleep(2 * PATIENCE_S)
    scene.meet()


def paging_in_while_drawing(scene: Scene) -> None:
    """Rank 2's thread sleeps as one that waits for a mapped file, for twice the patience."""
    if scene.mesh.rank == 2:
        hold = ctypes.CDLL(str(waiting_library(scene.folder))).hold
        with scene.timer.storage("drawing a mini-batch"):
            hold(round(2 * PATIENCE_S))
    scene.meet()


def waiting_library(folder: Path) -> Path:
    """`hold(seconds)`: who has made a child by vfork sleeps uninterruptibly until it has ended."""
    (folder / "hold.c").write_text(
        "#include <unistd.h>\n"
        "void hold(unsigned s) { if (vfork() == 0) { sleep(s); _exit(0); } }\n"
        "int main(void) { hold(600); }\n"
    )
    for options, name in (["-shared", "-fPIC"], "hold.so"), ([], "hold"):
        subprocess.run(["gcc", *options, "hold.c", "-o", name], cwd=folder, check=True)
    return folder / "hold.so"


def stopped_while_writing(scene: Scene) -> None:
    if scene.mesh.rank == 1:
        with scene.timer.storage("writing a checkpoint"):
            scene.stop_until_told(0, 2)
    scene.meet()


def sleeping_in_forward(scene: Scene) -> None:
    if scene.mesh.rank == 2:
        with scene.timer.span("forward", 3):
            scene.until_told(0, 1, 2)
    scene.meet()


def absent_from_all_reduce(scene: Scene) -> None:
    """Rank 1 sleeps before it has a word for it; the others are in a collective that has one."""
    if scene.mesh.rank == 1:
        with scene.timer.span("backward", 0):
            scene.until_told(0, 1, 2)
    with scene.timer.span("allreduce"):
        scene.mesh.barrier()


def stopped(scene: Scene) -> None:
    """In a micro-batch of no scene before, of which the store still has words."""
    if scene.mesh.rank == 1:
        with scene.timer.span("backward", 7):
            scene.stop_until_told(0, 2)
    scene.meet()


def stopped_with_the_store(scene: Scene) -> None:
    """Rank 0 holds the store through which the watchdogs talk."""
    if scene.mesh.rank == 0:
        with scene.timer.span("forward", 1):
            scene.stop_until_told(1, 2)
    scene.meet()


def suspended_together(scene: Scene) -> None:
    """As a scheduler suspends a job: for longer than the patience, and then on."""
    scene.mesh.barrier()
    if scene.mesh.rank == 0:
        everyone = " ".join(str(pid) for pid in scene.pids)
        script = f"kill -STOP {everyone}; sleep {1.6 * PATIENCE_S}; kill -CONT {everyone}"
        subprocess.Popen(["sh", "-c", script])
    time.sleep(0.5)
    scene.meet()


SCENES: list[Callable[[Scene], None]] = [
    long_computation,
    long_computation_of_a_worker,
    slow_storage,
    paging_in_while_drawing,
    stopped_while_writing,
    sleeping_in_forward,
    absent_from_all_reduce,
    stopped,
    stopped_with_the_store,
    suspended_together,
]


def play(folder: str) -> dict[str, Verdicts]:
    watchdog._EVERY_S = 0.4
    watchdog._FROZEN_CHECKS = 3
    mesh = join(read_environment(), Layout(1, RANKS), torch.device("cpu"))
    pids = mesh.gather_objects(os.getpid())
    verdicts = {}
    for act in SCENES:
        place = Path(folder) / act.__name__
        place.mkdir(exist_ok=True)
        scene = Scene(mesh, pids, place)
        mesh.barrier()
        with watching(mesh, scene.timer, scene.tell):
            act(scene)
        mesh.barrier()
        verdicts[act.__name__] = scene.verdicts
    leave(mesh)
    return verdicts


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Verdicts]]:
    """What each rank was told in each scene."""
    folder = str(tmp_path_factory.mktemp("scenes"))
    return spawn(play, RANKS, folder, env={VARIABLE: str(PATIENCE_S)})


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    "scene",
    [
        *("long_computation", "long_computation_of_a_worker", "slow_storage"),
        *("paging_in_while_drawing", "suspended_together"),
    ],
)
def test_no_verdict_while_something_is_computed_or_all_are_suspended(
    told: list[dict[str, Verdicts]], scene: str
) -> None:
    assert [rank[scene] for rank in told] == [[], [], []]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("scene", "culprit", "witnesses", "begins", "ends"),
    [
        ("sleeping_in_forward", 2, [0, 1, 2], "hung: no rank did", "in forward of micro-batch 3"),
        ("absent_from_all_reduce", 1, [0, 1, 2], "hung: no rank", "in backward of micro-batch 0"),
        ("stopped_while_writing", 1, [0, 2], "frozen for", "in writing a checkpoint"),
        ("stopped", 1, [0, 2], "frozen for", "in backward of micro-batch 7"),
        # Whoever had just read its state knows what it was doing.
        (
            *("stopped_with_the_store", 0, [1, 2]),
            ("frozen: its store has not answered for", "frozen for"),
            (" s", "in forward of micro-batch 1"),
        ),
    ],
)
def test_the_rank_that_holds_the_others_up_is_named(
    told: list[dict[str, Verdicts]],
    scene: str,
    culprit: int,
    witnesses: list[int],
    begins: str | tuple[str, ...],
    ends: str | tuple[str, ...],
) -> None:
    for rank, verdicts in enumerate(scenes[scene] for scenes in told):
        assert len(verdicts) == (rank in witnesses), "each is told once"
        for blamed, why in verdicts:
            assert blamed == culprit
            assert why.startswith(begins)
            assert why.endswith(ends)


def test_a_process_that_waits_for_storage_is_seen(tmp_path: Path) -> None:
    def waits() -> bool:
        return watchdog._waits_for_storage(list(watchdog._stats_of(watchdog._children())))

    waiting_library(tmp_path)
    assert not waits()
    with subprocess.Popen([tmp_path / "hold"], start_new_session=True) as process:
        while not waits():
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert not waits()


def test_a_rank_alone_is_not_watched() -> None:
    before = threading.active_count()
    mesh = Mesh(Layout(), 0, torch.device("cpu"))
    with watching(mesh, StepTimer(mesh.device), lambda rank, why: None):
        assert threading.active_count() == before


def test_the_limit_is_a_positive_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert hang_seconds() == watchdog.HANG_S
    monkeypatch.setenv(VARIABLE, "2.5")
    assert hang_seconds() == 2.5
    for wrong in ("soon", "0", "-1", "nan", "inf"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(InputError, match=rf"{VARIABLE}: found '{wrong}'; allowed: a positive"):
            hang_seconds()


@dataclass(frozen=True)
class Doing:
    """One thing for ever."""

    doing: str
    spins: bool = False
    work: int = 7


TWICE_S = 4.0
"""Of which what hangs is told of in half."""


def told_of(does: Callable[[], object], monkeypatch: pytest.MonkeyPatch, seconds: float) -> bool:
    """Whether a host that does this again and again within a step of a GPU is told of in time."""
    # As many checks, and as much of a processor in one, as there are in a run.
    monkeypatch.setattr(watchdog, "_EVERY_S", 0.1)
    monkeypatch.setattr(watchdog, "_BUSY_CPU_S", 0.005)
    monkeypatch.setenv(VARIABLE, "2")
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    told = threading.Event()
    dog = watchdog.Watchdog(
        store, 0, 1, Doing("wait of micro-batch 2", spins=True), lambda rank, why: told.set()
    )
    end = time.monotonic() + seconds
    while not told.is_set() and time.monotonic() < end:
        does()
    dog.close()
    return told.is_set()


def test_processor_time_of_a_host_that_spins_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a synchronize with a GPU whose transfer hangs, which lets other threads run."""
    data = bytes(2**20)
    assert told_of(lambda: zlib.crc32(data), monkeypatch, 60)


def take_memory() -> None:
    kept = mmap.mmap(-1, 1000 * mmap.PAGESIZE)
    for page in range(1000):
        kept[page * mmap.PAGESIZE] = 1
    kept.close()
    time.sleep(0.001)


def start_a_compiler() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        time.sleep(0.5)
        process.kill()


@pytest.mark.quick("take_memory")
@pytest.mark.parametrize("does", [take_memory, start_a_compiler])
def test_a_host_that_compiles_within_a_step_of_a_gpu_does_not_hang(
    does: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not told_of(does, monkeypatch, TWICE_S)


@pytest.mark.quick("child's child-True")
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("command", ["exec {}", "{}; true"], ids=["child", "child's child"])
def test_a_process_that_computes_for_this_one_is_found(
    command: str, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a driver of a compiler; and on kernels without CONFIG_PROC_CHILDREN."""
    if not listed:
        monkeypatch.setattr(watchdog, "_children", lambda: iter(()))
    burn = f"{sys.executable} -c 'while True: pass'"
    with subprocess.Popen(["sh", "-c", command.format(burn)], start_new_session=True) as process:
        told = told_of(lambda: time.sleep(0.01), monkeypatch, TWICE_S)
        os.killpg(process.pid, signal.SIGKILL)
    assert not told


def test_children_are_descendants_too() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60; true"], start_new_session=True) as process:
        while len(found := set(watchdog._descendants())) < 2:
            time.sleep(0.01)
        assert PROCESSES / str(process.pid) in found
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_who_waits_for_another_process_to_compile_a_kernel_does_not_hang(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GNNHPC_KERNEL_CACHE", raising=False)
    monkeypatch.delenv("GNNHPC_KERNELS", raising=False)
    taken = threading.Event()

    def others(lock: object) -> None:
        """The lock is held for twice as long as a rank may do nothing."""
        taken.wait(TWICE_S)

    monkeypatch.setattr(compiling.FileLock, "acquire", others)
    load_kernel.cache_clear()
    waiting = threading.Thread(target=load_kernel, args=("shared_memory_channel",))
    waiting.start()
    try:
        assert not told_of(lambda: time.sleep(0.01), monkeypatch, TWICE_S)
    finally:
        taken.set()
        waiting.join()
        load_kernel.cache_clear()
    assert not compiling.is_compiling()


def test_a_rank_stopped_before_its_first_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 never writes to the store, as when it stops in its first second."""
    monkeypatch.setattr(watchdog, "_EVERY_S", 0.4)
    monkeypatch.setenv(VARIABLE, "2")
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    told = threading.Event()
    verdicts: Verdicts = []

    def tell(rank: int, why: str) -> None:
        verdicts.append((rank, why))
        told.set()

    dog = watchdog.Watchdog(store, 0, 2, Doing("wait"), tell)
    assert told.wait(60)
    dog.close()
    rank, why = verdicts[0]
    assert rank == 1
    assert "starting" in why


def test_a_rank_that_hangs_ends_once_rank_0_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 finds the hang first and ends, and the store with it; no collective tells rank 1."""
    monkeypatch.setattr(watchdog, "_EVERY_S", 0.4)
    monkeypatch.setenv(VARIABLE, "2")
    local = ("127.0.0.1", 0, 2, True)
    store = torch.distributed.TCPStore(*local, wait_for_workers=False)
    there = torch.distributed.TCPStore("127.0.0.1", store.port, 2, False)
    told = threading.Event()
    verdicts: Verdicts = []

    def tell(rank: int, why: str) -> None:
        verdicts.append((rank, why))
        told.set()

    # Its own state alone: with both ranks' it would find the hang itself.
    there.set("watchdog/0", '{"check": 1, "work": 1, "doing": "wait"}')
    dog = watchdog.Watchdog(there, 1, 2, Doing("forward of micro-batch 0"), tell)
    time.sleep(watchdog._EVERY_S)
    del store
    assert told.wait(60)
    dog.close()
    assert len(verdicts) == 1
    rank, why = verdicts[0]
    assert rank == 1
    assert why.startswith("hung: it did nothing for ")
    assert why.endswith(" s in forward of micro-batch 0")
