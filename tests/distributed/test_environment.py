"""The environment: which launcher's variables name the rank, and errors for incomplete ones."""

from __future__ import annotations

import json
import os
import socket

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.environment import (
    SITE_VARIABLE,
    Environment,
    check_world_size,
    first_node,
    local_rank_variables,
    read_environment,
    switch,
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
    return (
        environment.launcher,
        environment.rank,
        environment.world_size,
        environment.local_rank,
        environment.first_host,
        environment.port,
        environment.job_key,
    )


def test_torchrun() -> None:
    environment = read_environment(TORCHRUN)
    assert seen(environment) == ("torchrun", 3, 4, 1, "10.0.0.1", 29500, "some-run")
    assert environment.host == socket.gethostname()


def test_srun() -> None:
    environment = read_environment(SRUN)
    assert seen(environment) == ("slurm", 2, 4, 0, "127.0.0.1", None, "slurm-1234.0.0")
    assert (environment.host, environment.cpus, environment.restart_count) == ("n2", 7, 0)
    ids = (environment.job_id, environment.array_job_id, environment.array_task_id)
    assert ids == ("1234", "1230", "4")
    assert dict(environment.slurm)["SLURM_ARRAY_TASK_ID"] == "4"


def test_alone() -> None:
    """So is Slurm's batch step, which has a rank and no step of several tasks."""
    expected = ("alone", 0, 1, 0, "127.0.0.1", None, f"alone-{os.getpid()}")
    for env in ({}, {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}):
        assert seen(read_environment(env)) == expected


def test_torchrun_inside_a_slurm_job_is_torchrun() -> None:
    environment = read_environment(SRUN | TORCHRUN)
    assert (environment.launcher, environment.rank) == ("torchrun", 3)
    assert environment.job_id == "1234"
    # Its ranks share the CPUs of Slurm's task.
    cpus = read_environment(SRUN | TORCHRUN | {"SLURM_CPUS_PER_TASK": "2"}).cpus
    assert cpus == max(1, min(2, len(os.sched_getaffinity(0))) // 2)


# What a container's hook or an example's exports leave in the environment.
EXPORTED = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


def test_a_slurm_step_outranks_exported_variables() -> None:
    environment = read_environment(SRUN | EXPORTED)
    # A loopback address is of no use to ranks on other nodes.
    assert seen(environment)[:5] == ("slurm", 2, 4, 0, "127.0.0.1")
    nodes = {"SLURM_STEP_NODELIST": "10.0.0.[7-8]", "SLURM_STEP_NUM_NODES": "2"}
    assert read_environment(SRUN | EXPORTED | nodes).first_host == "10.0.0.7"


def test_ranks_that_are_started_by_hand_get_a_clean_environment() -> None:
    variables = local_rank_variables(1, 2, 4000, SRUN | TORCHRUN | {"HOME": "/home/me"})
    environment = read_environment(variables)
    assert seen(environment)[:5] == ("torchrun", 1, 2, 1, "127.0.0.1")
    assert (environment.port, environment.job_id, variables["HOME"]) == (4000, None, "/home/me")


def test_master_addr_and_port_of_a_site_are_used_under_srun() -> None:
    environment = read_environment(SRUN | {"MASTER_ADDR": "ib0.n1", "MASTER_PORT": "4000"})
    assert (environment.first_host, environment.port) == ("ib0.n1", 4000)


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


def test_a_wrong_world_size_says_how_to_start() -> None:
    check_world_size(read_environment(TORCHRUN), Layout.parse("dp2-pp2"))
    with pytest.raises(InputError) as refused:
        check_world_size(read_environment(TORCHRUN), Layout.parse("pp2"))
    assert str(refused.value) == (
        "environment: world size under torchrun: found 4; allowed: 2, one rank for each of pp2; "
        "start it with srun -n 2 or torchrun --nproc-per-node 2"
    )


@pytest.mark.parametrize(
    ("nodelist", "name"),
    [
        ("", ""),
        ("n1", "n1"),
        ("n[08-11,20],gpu01", "n08"),
        ("r[1-2]n[7,9]", "r1n7"),
        ("a.b-c[001,003].d", "a.b-c001.d"),
    ],
)
def test_the_first_node_of_a_list(nodelist: str, name: str) -> None:
    assert first_node(nodelist) == name


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


def test_a_switch_is_on_off_or_unset() -> None:
    values = ({}, {"GNNHPC_SHARED_MEMORY": "1"}, {"GNNHPC_SHARED_MEMORY": "0"})
    assert [switch("GNNHPC_SHARED_MEMORY", env) for env in values] == [None, True, False]
    with pytest.raises(InputError, match="GNNHPC_SHARED_MEMORY: found 'no'; allowed: 1, 0 or unse"):
        switch("GNNHPC_SHARED_MEMORY", {"GNNHPC_SHARED_MEMORY": "no"})
