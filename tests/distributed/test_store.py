"""Ranks under srun meet in a store that listens at one address, for those with the run's secret."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.layout import Layout
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.mesh import join, leave
from gnnhpc.distributed.secret import make_secret
from gnnhpc.distributed.store import connect
from tests.distributed.listening import listening_addresses, needs_ipv6
from tests.distributed.test_environment import TORCHRUN
from tests.tools.forked import spawn
from tests.tools.ranks import ROOT, lease_port

EVERYWHERE = {"0.0.0.0", "::"}
STEP = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NODELIST": "127.0.0.1",
}


def meet(root: str, variables: dict[str, str]) -> tuple[list[float], set[str]]:
    """What every rank was told by all, and where this one listened meanwhile."""
    rank = os.environ["RANK"]
    environment = read_environment(STEP | {"SLURM_PROCID": rank} | variables)
    layout, device = Layout.parse("pp2"), torch.device("cpu")
    mesh = join(environment, layout, device, secret_file=RunPaths(Path(root)).secret)
    told = mesh.gather(torch.tensor([10.0 + mesh.rank], dtype=torch.float64))
    listened = listening_addresses()
    mesh.barrier()
    leave(mesh)
    return told.flatten().tolist(), listened


def met(root: Path, variables: dict[str, str] | None = None, **env: str) -> list[set[str]]:
    """Where ranks 0 and 1 listened while they met; fails unless they did meet."""
    found = spawn(meet, 2, str(root), variables or {}, env=env)
    assert [told for told, _ in found] == [[10.0, 11.0]] * 2
    return [listened for _, listened in found]


@pytest.mark.distributed
def test_ranks_meet_at_the_address_of_rank_0s_name(tmp_path: Path) -> None:
    make_secret(RunPaths(tmp_path).secret)
    listened = met(tmp_path)
    assert "127.0.0.1" in listened[0]
    assert not EVERYWHERE & set.union(*listened)


@needs_ipv6
@pytest.mark.distributed
def test_ranks_meet_by_ipv6_alone(tmp_path: Path) -> None:
    listened = met(tmp_path, {"SLURM_STEP_NODELIST": "::1"})
    assert "::1" in listened[0]
    assert not EVERYWHERE & set.union(*listened)


@pytest.mark.distributed
def test_the_store_is_on_the_sites_interface(tmp_path: Path) -> None:
    """Other hosts may ask for it anywhere, where rank 0's own name is a loopback address."""
    several = {"SLURM_STEP_NUM_NODES": "2"}
    assert met(tmp_path, several, GLOO_SOCKET_IFNAME="lo")[0] & EVERYWHERE
    assert "127.0.0.1" in met(tmp_path, several, GLOO_SOCKET_IFNAME="lo")[0]


@pytest.mark.distributed
def test_an_older_run_gets_a_secret_when_its_ranks_meet(tmp_path: Path) -> None:
    met(tmp_path)
    secret = RunPaths(tmp_path).secret
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [secret.parent]


@pytest.mark.distributed
def test_two_jobs_of_a_run_meet_at_once_on_one_host(tmp_path: Path) -> None:
    jobs = [{"SLURM_JOB_ID": "1"}, {"SLURM_JOB_ID": "2"}]
    with ThreadPoolExecutor(2) as both:
        assert len(list(both.map(lambda job: met(tmp_path, job), jobs))) == 2


@pytest.mark.distributed
def test_a_port_that_is_set_is_served_at_its_address_alone(tmp_path: Path) -> None:
    with lease_port() as port:
        listened = met(tmp_path, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    assert not EVERYWHERE & set.union(*listened)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.distributed
def test_verify_needs_no_port_under_srun(tmp_path: Path) -> None:
    """Its ranks have no run folder, and share a secret of their user's."""
    outside = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")
    }
    command = [sys.executable, "-m", "gnnhpc", "verify", "--model", "gat", "--layout", "pp2"]
    ranks = [
        subprocess.Popen(
            [*command, "--microbatches", "2", "--steps", "1"],
            env=outside | STEP | {"SLURM_PROCID": rank, "XDG_CACHE_HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in "01"
    ]
    printed = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert "PASSED" in printed[0]
    assert len(list(tmp_path.rglob("rendezvous"))) == 1


def test_a_port_that_is_set_and_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment = read_environment(TORCHRUN | address | {"RANK": "0"})
        said = rf"127.0.0.1, MASTER_PORT {port}: Address already in use"
        with pytest.raises(GnnhpcError, match=said):
            connect(environment, None)


def test_ranks_without_a_run_say_what_they_need() -> None:
    environment = read_environment(STEP | {"SLURM_PROCID": "0"})
    with pytest.raises(InputError, match=r"environment: MASTER_PORT: found nothing; allowed: a po"):
        connect(environment, None)
