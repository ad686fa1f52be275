"""torchgpipe's GPipe computes what one process computes, whatever it keeps or recomputes."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest
import torch

from gnnhpc.experiment.experiment import Experiment
from tests.engines.steps import parts_of, step_of, take_step
from tests.tools.cells import gat, vig

RESGCN = {"model": {"name": "resgcn", "layers": 3, "hidden": 8, "dropout": 0.5}}
OTHERS = ("never", "except_last")
CASES: dict[str, dict[str, Any]] = {
    # The first stage is dropout alone; 121 nodes do not make equal chunks.
    "gat": {"layout": "pp4", "balance": [1, 2, 1, 2], "chunks": "halo"},
    "resgcn": {"layout": "pp3", **RESGCN},
    "vig": {"layout": "pp2", "batchnorm": "deferred"},
}


def case(name: str, **changes: Any) -> Experiment:
    graph = {"name": "synthetic-citation", "nodes": 121, "edges": 500, "features": 24}
    settings = CASES[name] | changes
    if name.startswith("vig"):
        return vig(**{"dtype": "float64", "batch_size": 12, "microbatches": 3} | settings)
    return gat(**{"dtype": "float64", "data": graph, "microbatches": 3} | settings)


@pytest.mark.parametrize(
    ("name", "checkpoint"), [*((name, "always") for name in CASES), *(("gat", c) for c in OTHERS)]
)
def test_a_step_is_that_of_one_process(name: str, checkpoint: str) -> None:
    alone = step_of(case(name, layout="seq", balance="cost"))
    gpipe = step_of(case(name, engine="torchgpipe", activation_checkpointing=checkpoint))
    assert gpipe.is_to_rounding(alone)
    # Gradients of micro-batches are added in another order, and begin in other memory.
    pairs = zip(gpipe.outputs, alone.outputs, strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_partitions_run_with_the_threads_that_are_set() -> None:
    parts = parts_of(case("gat", engine="torchgpipe"))
    seen: set[tuple[bool, int]] = set()
    # OpenMP's own number: torch's would set it where it is asked.
    threads = ctypes.CDLL(None).omp_get_max_threads
    main_thread = threading.get_ident()
    for part in parts.stage.virtual_stages:
        part.register_forward_pre_hook(
            lambda *_: seen.add((threading.get_ident() == main_thread, threads()))
        )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        take_step(parts)
    finally:
        torch.set_num_threads(before)
    assert seen == {(False, 3)}
