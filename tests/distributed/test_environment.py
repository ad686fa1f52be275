"""The environment: which launcher's variables name the rank, and errors for incomplete ones."""

from __future__ import annotations

import json
import os
import socket

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.distributed.environment import (
    SITE_VARIABLE,
    Environment,
    first_node,
    read_environment,
)

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "some-run",
}
SRUN = {
    "SLURM_JOB_ID": "1234",
    "SLURM_ARRAY_JOB_ID": "1230",
    "SLURM_ARRAY_TASK_ID": "4",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "8",
    "SLURM_CPUS_PER_TASK": "7",
    "SLURM_STEP_NODELIST": "127.0.0.[1-2]",
    "SLURMD_NODENAME": "n2",
}


def seen(environment: Environment) -> tuple[str, int, int, int, str, int | None, str]:
    found = environment
    place = found.launcher, found.rank, found.world_size, found.local_rank
    return (*place, found.first_host, found.port, found.job_key)


def test_each_launchers_variables_are_read() -> None:
    """Alone is also Slurm's batch step, which has a rank and no step of several tasks."""
    environment = read_environment(TORCHRUN)
    assert seen(environment) == ("torchrun", 3, 4, 1, "10.0.0.1", 29500, "some-run")
    assert environment.host == socket.gethostname()
    environment = read_environment(SRUN)
    assert seen(environment) == ("slurm", 2, 4, 0, "127.0.0.1", None, "slurm-1234.0.0")
    assert (environment.host, environment.cpus, environment.restart_count) == ("n2", 7, 0)
    assert environment.job_id == "1234"
    assert environment.slurm["SLURM_ARRAY_TASK_ID"] == "4"
    expected = ("alone", 0, 1, 0, "127.0.0.1", None, f"alone-{os.getpid()}")
    for env in ({}, {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}):
        assert seen(read_environment(env)) == expected


# What a container's hook or an example's exports leave in the environment.
EXPORTED = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


def test_a_slurm_step_outranks_exported_variables() -> None:
    environment = read_environment(SRUN | EXPORTED)
    # A loopback address is of no use to ranks on other nodes.
    assert seen(environment)[:5] == ("slurm", 2, 4, 0, "127.0.0.1")
    nodes = {"SLURM_STEP_NODELIST": "10.0.0.[7-8]", "SLURM_STEP_NUM_NODES": "2"}
    assert read_environment(SRUN | EXPORTED | nodes).first_host == "10.0.0.7"


def without(env: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in env.items() if key != name}


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (without(TORCHRUN, "MASTER_ADDR"), "MASTER_ADDR: found nothing; allowed: the value that"),
        (TORCHRUN | {"RANK": "one"}, "RANK: found 'one'; allowed: a whole number"),
        ({"RANK": "1"}, "WORLD_SIZE: found nothing; allowed: a whole number"),
        (TORCHRUN | {"RANK": "4"}, "rank under torchrun: found 4; allowed: 0 to 3, as there are 4"),
        (SRUN | {"SLURM_CPUS_PER_TASK": "0"}, "SLURM_CPUS_PER_TASK: found 0; allowed: at least 1"),
    ],
    ids=range(5),
)
def test_half_set_and_impossible_variables_are_named(env: dict[str, str], line: str) -> None:
    with pytest.raises(InputError) as refused:
        read_environment(env)
    assert str(refused.value).startswith(f"environment: {line}")


def test_threads_come_from_our_variable_then_slurms_then_a_share_of_the_cpus() -> None:
    allowed = len(os.sched_getaffinity(0))
    assert read_environment({}).cpus == allowed
    assert read_environment(SRUN | {"GNNHPC_THREADS": "3"}).cpus == 3
    assert read_environment(TORCHRUN).cpus == max(1, allowed // 2)
    assert read_environment(TORCHRUN | {"LOCAL_WORLD_SIZE": "999"}).cpus == 1


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("", ""),
        ("n1", "n1"),
        ("n[08-11,20],gpu01", "n08"),
        ("r[1-2]n[7,9]", "r1n7"),
        ("a.b-c[001,003].d", "a.b-c001.d"),
    ],
)
def test_the_first_node_of_a_list(nodelist: str, first: str) -> None:
    assert first_node(nodelist) == first


def test_the_site_is_the_submissions_but_for_what_slurm_granted() -> None:
    asked = {"name": "lab", "partition": "slow", "cpus_per_task": 2, "modules": ["gcc"]}
    assert read_environment({SITE_VARIABLE: json.dumps(asked)}).site == asked
    granted = read_environment(
        SRUN | {SITE_VARIABLE: json.dumps(asked), "SLURM_JOB_PARTITION": "fast"}
    ).site
    assert granted == asked | {"partition": "fast", "cpus_per_task": 7}
    assert read_environment({}).site is None
    with pytest.raises(InputError, match="GNNHPC_SITE: found '3'; allowed: a JSON object"):
        read_environment({SITE_VARIABLE: "3"})


def test_ranks_share_memory_on_one_node_as_the_launcher_says() -> None:
    """Agents of torchrun may be several on a machine, and so may Slurm's daemons."""

    def node(**variables: str) -> str:
        return read_environment({"SLURMD_NODENAME": "n1"} | variables).node

    step = without(SRUN, "SLURMD_NODENAME")
    assert node(**step, SLURM_NODEID="0") != node(**step, SLURM_NODEID="1")
    assert node(**step) != node(**step | {"SLURMD_NODENAME": "n2"})
    assert node(**TORCHRUN, GROUP_RANK="0") != node(**TORCHRUN, GROUP_RANK="1")
    assert node(**TORCHRUN) == node(**TORCHRUN | {"RANK": "2", "LOCAL_RANK": "0"})
