"""Which ranks share memory: those of one node that could open each other's, and no others."""

from __future__ import annotations

import os

import pytest

from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.peer_memory import Peer, SharedMemory

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
SRUN = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}


def node(**variables: str) -> str:
    return read_environment({"SLURMD_NODENAME": "n1"} | variables).node


def test_a_node_is_what_the_launcher_says() -> None:
    """Agents of torchrun may be several on a machine, and so may Slurm's daemons."""
    assert node(**SRUN, SLURM_NODEID="0") != node(**SRUN, SLURM_NODEID="1")
    assert node(**SRUN) != node(**SRUN | {"SLURMD_NODENAME": "n2"})
    assert node(**TORCHRUN, GROUP_RANK="0") != node(**TORCHRUN, GROUP_RANK="1")
    first = node(**TORCHRUN, LOCAL_RANK="1")
    assert first == node(**TORCHRUN | {"RANK": "2"}, LOCAL_RANK="0")
    assert first != node(**TORCHRUN, LOCAL_RANK="0")


def test_memory_of_this_process_is_opened_by_its_number() -> None:
    memory, here = SharedMemory(10), Peer(0, os.getpid())
    seen = here.open(memory.fd, 10)
    memory.bytes[3] = 7
    assert seen.tolist() == [0, 0, 0, 7, 0, 0, 0, 0, 0, 0]
    assert not here.has_ended()
    with pytest.raises(OSError, match="has no 11 bytes"):
        here.open(memory.fd, 11)
