"""The CPUs of this process, and what OpenMP does with them.

OpenMP binds threads where its variables ask for it, the main thread as soon as the library is
loaded: the main thread's CPUs are then a few of the process's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

_TASKS = Path("/proc/self/task")
_OPENMP = ("OMP_", "GOMP_", "KMP_")
_BINDING = ("KMP_AFFINITY", "GOMP_CPU_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")
"""The variables that bind threads; an earlier one outranks those after it."""
_NO_BINDING = ("", "false", "none", "disabled")


def process_cpus() -> set[int]:
    """The CPUs that this process may use: of all its threads, as OpenMP may bind each to a few."""
    cpus = set(os.sched_getaffinity(0))
    for task in _TASKS.iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            cpus |= os.sched_getaffinity(int(task.name))
    return cpus


def openmp_variables() -> dict[str, str]:
    """The variables that decide how many threads OpenMP has, and where."""
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_OPENMP)}


def binding_variable(variables: Mapping[str, str]) -> str | None:
    """Of the variables of OpenMP the one that binds threads, with its value; None where none does.

    OMP_PROC_BIND=false keeps threads from being bound, whatever the places are.
    """
    if variables.get("OMP_PROC_BIND", "").lower() == "false":
        variables = {name: value for name, value in variables.items() if name != "OMP_PLACES"}
    for name in _BINDING:
        if variables.get(name, "").lower() not in _NO_BINDING:
            return f"{name}={variables[name]}"
    return None
