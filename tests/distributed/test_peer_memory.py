"""Which ranks may share memory: those of one node."""

from __future__ import annotations

from gnnhpc.distributed.environment import read_environment

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
