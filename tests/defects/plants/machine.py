"""Threads, code and files of the ranks."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gnnhpc.core import provenance
from gnnhpc.kernels import compile as compiling
from tests.defects import cells
from tests.defects.defect import around, planted, rank, replace

defect = functools.partial(planted, kind="threads, code, hosts", mechanism="record-audit")
TWO_THREADS = {"GNNHPC_THREADS": "2"}


@defect(
    "a rank that takes all cores",
    cell=cells.VIG,
    words="had 8 threads",
)
def all_cores() -> None:
    around(torch, "set_num_threads", lambda original, count: original(8 if rank() else count))


@defect(
    "one rank without a compiler",
    cell=cells.VIG,
    words="has implementation",
)
def no_compiler() -> None:
    if rank() == 1:
        replace(compiling, "load_kernel", lambda name: None)


@defect("a rank that runs other code", cell=cells.VIG, mechanism="failure", words="runs other code")
def other_code() -> None:
    around(provenance, "code_digest", lambda original: original() if rank() == 0 else "0" * 16)


@defect(
    "a rank on a host of another CPU model",
    cell=cells.VIG,
    words="has cpu_model Another CPU",
)
def other_cpu() -> None:
    def model(original: Any) -> str:
        return "Another CPU" if rank() else str(original())

    around(provenance, "cpu_model", model)
