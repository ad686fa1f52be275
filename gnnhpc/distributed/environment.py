"""The environment variables of the launcher: this process's rank, its peers, its CPUs.

They are read once, before torch is imported. torchrun's variables and a Slurm step's say who
started a process; RANK and WORLD_SIZE alone may come from a container's hook or a script, and count
only where there is none of these.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.cpus import process_cpus

Launcher = Literal["alone", "torchrun", "slurm"]
SITE_VARIABLE = "GNNHPC_SITE"
"""Name and settings of the site that a job was submitted with: JSON, set by its script."""
_OF_LAUNCHERS = ("SLURM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_RANK")
"""How variables of launchers begin."""
_KEPT = (
    *("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID"),
    *("SLURM_RESTART_COUNT", "SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST"),
    *("SLURM_JOB_CPUS_PER_NODE", "SLURM_CLUSTER_NAME", "SLURMD_NODENAME"),
)
_GRANTED = {
    "cluster": "SLURM_CLUSTER_NAME",
    "partition": "SLURM_JOB_PARTITION",
    "constraint": "SLURM_JOB_CONSTRAINTS",
    "hint": "SLURM_HINT",
    "threads_per_core": "SLURM_THREADS_PER_CORE",
    "cpus_per_task": "SLURM_CPUS_PER_TASK",
}
"""Settings that decide how fast a rank runs, and where Slurm says what was granted of them."""


@dataclass(frozen=True)
class Environment:
    """What the launcher's variables say; `launcher` is whose variables these are."""

    launcher: Launcher
    host: str
    cpus: int
    """Threads that this rank computes with."""
    node: str
    """The same on ranks that the launcher started on one node, which may be one of several that
    a machine plays."""
    job_key: str
    """The same on all ranks of one start, and different for every other start."""
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    first_host: str = "127.0.0.1"
    """Name or address of rank 0's host."""
    port: int | None = None
    """Port of rank 0's store, if the launcher sets it."""
    restart_count: int = 0
    max_requeues: int = 5
    """How often a job may go back into the queue; its script sets GNNHPC_MAX_REQUEUES."""
    slurm: Mapping[str, str] = field(default_factory=dict)
    """The SLURM_* values that the records keep."""
    site: Mapping[str, Any] | None = None
    """Settings that the job was started with: the site's, less what sbatch was given otherwise."""

    @property
    def job_id(self) -> str | None:
        """Slurm's number of this task's job; None outside of its jobs."""
        return self.slurm.get("SLURM_JOB_ID")

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            allowed = f"0 to {self.world_size - 1}, as there are {self.world_size} ranks"
            raise InputError("environment", f"rank under {self.launcher}", self.rank, allowed)


def read_environment(env: Mapping[str, str] | None = None) -> Environment:
    """Read the variables of torchrun or srun, whichever are set.

    Raises InputError with the variable's name for missing or impossible values.
    """
    env = os.environ if env is None else env
    launcher, host = _launcher(env), env.get("SLURMD_NODENAME") or socket.gethostname()
    restart_count = _number(env, "SLURM_RESTART_COUNT", 0)
    place: dict[str, Any] = {"job_key": f"alone-{os.getpid()}"}
    node = ""
    if launcher == "torchrun":
        place = {
            "rank": _number(env, "RANK"),
            "world_size": _number(env, "WORLD_SIZE"),
            "local_rank": _number(env, "LOCAL_RANK", 0),
            "first_host": env.get("MASTER_ADDR"),
            "port": _number(env, "MASTER_PORT"),
            "job_key": env.get("TORCHELASTIC_RUN_ID", env.get("SLURM_JOB_ID", "torchrun")),
        }
        if not place["first_host"]:
            allowed = "the value that a launcher sets"
            raise InputError("environment", "MASTER_ADDR", "nothing", allowed)
        # A launcher that numbers no nodes has a first rank on each.
        node = env.get("GROUP_RANK") or f"from {place['rank'] - place['local_rank']}"
    elif launcher == "slurm":
        place = {
            "rank": _number(env, "SLURM_PROCID"),
            "world_size": _number(env, "SLURM_STEP_NUM_TASKS", _number(env, "SLURM_NTASKS", 1)),
            "local_rank": _number(env, "SLURM_LOCALID", 0),
            "first_host": _first_host(env),
            "port": _number(env, "MASTER_PORT") if "MASTER_PORT" in env else None,
            "job_key": f"slurm-{env.get('SLURM_JOB_ID')}.{env['SLURM_STEP_ID']}.{restart_count}",
        }
        node = env.get("SLURM_NODEID", "")
    return Environment(
        launcher=launcher,
        host=host,
        cpus=_cpus(env, launcher),
        node=f"{node} {host}",
        **place,
        restart_count=restart_count,
        max_requeues=_number(env, "GNNHPC_MAX_REQUEUES", Environment.max_requeues),
        slurm={name: env[name] for name in _KEPT if name in env},
        site=_site(env),
    )


def _launcher(env: Mapping[str, str]) -> Launcher:
    """Who started this process; variables of torchrun alone may be another launcher's."""
    if "TORCHELASTIC_RUN_ID" in env:
        return "torchrun"
    if "SLURM_PROCID" in env and "SLURM_STEP_ID" in env:
        return "slurm"
    return "torchrun" if "RANK" in env or "WORLD_SIZE" in env else "alone"


def local_rank_variables(rank: int, world_size: int, port: int) -> dict[str, str]:
    """The environment of one of `world_size` ranks that are started on this machine by hand.

    It has none of another launcher's variables, within whose process this may be.
    """
    clean = {k: value for k, value in os.environ.items() if not k.startswith(_OF_LAUNCHERS)}
    return clean | {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def check_world_size(environment: Environment, layout: Layout) -> None:
    """Raises InputError if the launcher started another number of processes than a layout's."""
    requested = layout.world_size
    if environment.world_size != requested:
        raise InputError(
            "environment",
            f"world size under {environment.launcher}",
            environment.world_size,
            f"{requested}, one rank for each of {layout}; start it with srun -n "
            f"{requested} or torchrun --nproc-per-node {requested}",
        )


def switch(name: str) -> bool | None:
    """Whether a variable is 1 or 0; None where it is unset. Raises InputError for other values."""
    text = os.environ.get(name, "")
    if text not in ("", "0", "1"):
        raise InputError("environment", name, repr(text), "1, 0 or unset")
    return text == "1" if text else None


def _first_host(env: Mapping[str, str]) -> str:
    """MASTER_ADDR if it is set; else the first node of the step.

    Ranks of other nodes cannot reach a loopback address, which a script may set for one node.
    """
    several = _number(env, "SLURM_STEP_NUM_NODES", 1) > 1
    named = env.get("MASTER_ADDR")
    if named and not (several and named.startswith(("localhost", "127.", "::1"))):
        return named
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")
    return first_node(nodes) or "127.0.0.1"


def first_node(nodelist: str) -> str:
    """The first name of Slurm's `n[01-03,7],gpu01`; scontrol may be missing on compute nodes."""
    # The first name ends at a comma outside of brackets; of each bracket it has the first choice.
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else "")


def _site(env: Mapping[str, str]) -> dict[str, Any] | None:
    """The site's settings, and in their place what Slurm granted: sbatch takes flags of its own."""
    text = env.get(SITE_VARIABLE)
    granted: dict[str, Any] = {
        key: int(env[name]) if env[name].isdigit() else env[name]
        for key, name in _GRANTED.items()
        if env.get(name)
    }
    try:
        site = dict(json.loads(text)) if text else {}
    except (TypeError, ValueError):
        raise InputError("environment", SITE_VARIABLE, repr(text), "a JSON object") from None
    return site | granted or None


def _cpus(env: Mapping[str, str], launcher: Launcher) -> int:
    """Threads a rank: $GNNHPC_THREADS, what Slurm grants a task, or an equal share of the CPUs.

    Ranks that a task of Slurm's starts, as torchrun does, share the CPUs of that task.
    """
    if env.get("GNNHPC_THREADS"):
        return _number(env, "GNNHPC_THREADS", least=1)
    allowed = len(process_cpus())
    of_task = _number(env, "SLURM_CPUS_PER_TASK", allowed, least=1)
    if launcher == "slurm":
        return of_task
    ranks = _number(env, "LOCAL_WORLD_SIZE", 1, least=1) if launcher == "torchrun" else 1
    return max(1, min(allowed, of_task) // ranks)


def _number(
    env: Mapping[str, str], name: str, default: int | None = None, least: int | None = None
) -> int:
    """A variable's whole number; raises InputError without one, or for less than `least`."""
    text = env.get(name)
    if not text and default is not None:
        return default
    try:
        value = int(text or "")
    except ValueError:
        found = repr(text) if text else "nothing"
        raise InputError("environment", name, found, "a whole number") from None
    if least is not None and value < least:
        raise InputError("environment", name, value, f"at least {least}")
    return value
