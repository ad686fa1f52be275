"""One process at a time, with flock and where it is refused; what a dead one left is taken over."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gnnhpc.core.process_start import process_start_ticks
from tests.tools.no_flock import without_flock

ROOT = Path(__file__).parents[2]
COUNT = """
import sys, time
from pathlib import Path
from gnnhpc.core.exclusive_lock import exclusive_lock
folder = Path(sys.argv[1])
for _ in range(6):
    with exclusive_lock(folder / "lock"):
        number = int((folder / "count").read_text())
        time.sleep(0.005)
        (folder / "count").write_text(str(number + 1))
"""
HOLD = """
import sys, time
from pathlib import Path
from gnnhpc.core.exclusive_lock import exclusive_lock
with exclusive_lock(Path(sys.argv[1]) / "lock"):
    print("held", flush=True)
    time.sleep(600)
"""
TRY = """
import sys
from pathlib import Path
from gnnhpc.core.errors import InputError
from gnnhpc.core.exclusive_lock import exclusive_lock
try:
    with exclusive_lock(Path(sys.argv[1]) / "lock", patience_s=0.5):
        print("held")
except InputError as error:
    print(error)
"""


def start(code: str, folder: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        cwd=ROOT, env=os.environ | env, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("refused", [None, "ENOLCK", "ENOSYS", "EOPNOTSUPP", "EBADF"])
def test_no_two_hold_it_at_once(refused: str | None, tmp_path: Path) -> None:
    env = without_flock(tmp_path, refused) if refused else {}
    (tmp_path / "count").write_text("0")
    processes = [start(COUNT, tmp_path, env) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "18"
    assert not list(tmp_path.glob("*.owner"))


def test_what_a_killed_process_held_is_taken_over_by_one_of_several(tmp_path: Path) -> None:
    env = without_flock(tmp_path)
    (tmp_path / "count").write_text("0")
    with start(HOLD, tmp_path, env) as dead:
        assert dead.stdout is not None
        assert dead.stdout.readline() == "held\n"
        waiting = [start(COUNT, tmp_path, env) for _ in range(3)]
        time.sleep(0.5)
        assert (tmp_path / "count").read_text() == "0"
        dead.send_signal(signal.SIGKILL)
    assert [process.wait(120) for process in waiting] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "18"


@pytest.mark.parametrize("owner", ["elsewhere 7 100\n", "", "nonsense"])
def test_a_lock_that_nobody_here_can_judge_is_named(owner: str, tmp_path: Path) -> None:
    env = without_flock(tmp_path)
    owned = tmp_path / "lock.owner"
    owned.write_text(owner)
    said = start(TRY, tmp_path, env).communicate(timeout=60)[0]
    who = "process 7 on elsewhere" if "elsewhere" in owner else "an unknown process"
    assert said.startswith(f"{owned}: found a lock of {who}, kept for more than ")
    assert "remove that file" in said
    assert owned.read_text() == owner
    owned.unlink()
    assert start(TRY, tmp_path, env).communicate(timeout=60)[0] == "held\n"


def test_a_process_id_that_is_used_again_is_no_owner(tmp_path: Path) -> None:
    mine = process_start_ticks(os.getpid())
    assert mine is not None
    (tmp_path / "lock.owner").write_text(f"{socket.gethostname()} {os.getpid()} {mine - 1}\n")
    said = start(TRY, tmp_path, without_flock(tmp_path)).communicate(timeout=60)[0]
    assert said == "held\n"
