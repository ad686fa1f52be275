"""Which ranks share memory: those of one node that could open each other's, and no others."""

from __future__ import annotations

import os

import pytest
import torch.distributed as dist

from gnnhpc.core.errors import InputError
from gnnhpc.distributed import peer_memory
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.peer_memory import Peer, SharedMemory, find_peers, is_wanted
from gnnhpc.kernels.compile import load_kernel
from tests.tools.forked import spawn

distributed = pytest.mark.distributed
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


def test_what_may_be_asked_for() -> None:
    asked = ({}, {"GNNHPC_SHARED_MEMORY": "1"}, {"GNNHPC_SHARED_MEMORY": "0"})
    assert [is_wanted(env) for env in asked] == [True, True, False]
    with pytest.raises(InputError, match="GNNHPC_SHARED_MEMORY: found 'no'; allowed: 1, 0 or unse"):
        is_wanted({"GNNHPC_SHARED_MEMORY": "no"})


def test_memory_of_this_process_is_opened_by_its_number() -> None:
    memory, here = SharedMemory(10), Peer(0, os.getpid())
    seen = here.open(memory.fd, 10)
    memory.bytes[3] = 7
    assert seen.tolist() == [0, 0, 0, 7, 0, 0, 0, 0, 0, 0]
    assert not here.has_ended()
    with pytest.raises(OSError, match="has no 11 bytes"):
        here.open(memory.fd, 11)


Variables = dict[int, dict[str, str]]
"""Of single ranks, by rank."""


def in_turn(cases: list[tuple[Variables, tuple[int, ...]]]) -> list[list[int]]:
    """With which of three ranks this one shares memory in each case, where some open nothing."""
    first = read_environment()
    assert first.port is not None
    store = dist.TCPStore(first.first_host, first.port, 3, first.rank == 0)
    found = []
    true = peer_memory._opened
    for number, (variables, open_nothing) in enumerate(cases):
        load_kernel.cache_clear()
        blind = first.rank in open_nothing
        peer_memory._opened = (lambda rank, offered: None) if blind else true
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.get(first.rank, {}).items():
                patch.setenv(name, value)
            place = dist.PrefixStore(str(number), store)
            peers = find_peers(place, read_environment(), range(3))
        assert all(peer.rank == rank for rank, peer in peers.items())
        found.append(sorted(peers))
    if first.rank:
        store.set(f"end/{first.rank}", "")
    else:
        # The store ends with this process: it answers nobody who still waits.
        store.wait(["end/1", "end/2"])
    return found


@distributed
def test_not_ranks_of_two_nodes_nor_where_one_cannot_or_must_not() -> None:
    everyone = [[1, 2], [0, 2], [0, 1]]
    without_1 = [[2], [], [0]]
    cases: list[tuple[Variables, tuple[int, ...], list[list[int]]]] = [
        ({}, (), everyone),
        ({1: {"GROUP_RANK": "1"}}, (), without_1),
        ({1: {"GNNHPC_SHARED_MEMORY": "0"}}, (), without_1),
        ({}, (1,), without_1),
        ({rank: {"GNNHPC_SHARED_MEMORY": "0"} for rank in range(3)}, (), [[], [], []]),
    ]
    found = spawn(in_turn, 3, [case[:2] for case in cases])
    assert [list(each) for each in zip(*found, strict=True)] == [case[2] for case in cases]
