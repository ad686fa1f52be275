"""What OpenMP does with a process's CPUs, and which of its variables does it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gnnhpc.distributed.cpus import binding_variable, process_cpus

PROGRAM = """
import os, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
first = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {first})
from gnnhpc.distributed.cpus import process_cpus
print(len(os.sched_getaffinity(0)), len(process_cpus()))
"""


def test_a_bound_main_thread_does_not_hide_the_cpus_of_the_process() -> None:
    """OpenMP binds it as soon as it is loaded."""
    reported = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout
    assert reported.split() == ["1", str(len(os.sched_getaffinity(0)))]
    assert process_cpus() == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("variables", "decides"),
    [
        ({}, None),
        ({"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}, "OMP_PROC_BIND=close"),
        ({"OMP_PROC_BIND": "FALSE", "OMP_PLACES": "cores"}, None),
        ({"OMP_PLACES": "cores"}, "OMP_PLACES=cores"),
        ({"OMP_PROC_BIND": "true", "GOMP_CPU_AFFINITY": "0-3"}, "GOMP_CPU_AFFINITY=0-3"),
        ({"KMP_AFFINITY": "disabled", "OMP_PROC_BIND": "spread"}, "OMP_PROC_BIND=spread"),
    ],
)
def test_the_variable_that_binds_threads_is_named(
    variables: dict[str, str], decides: str | None
) -> None:
    assert binding_variable(variables) == decides
