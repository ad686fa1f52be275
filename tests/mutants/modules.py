"""Files that are mutated, and the fast tests that must notice a change to them.

The tests run in the process that holds the mutant: ranks, which import the files anew, see none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """Files of one idea, and the tests that must notice any change to them."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


TARGETS = {
    "layout": Target(("gnnhpc/core/layout.py",), ("tests/core/test_layout.py",)),
    "schedules": Target(("gnnhpc/core/schedules.py",), ("tests/core/test_schedules.py",)),
    "balance": Target(("gnnhpc/experiment/stage_cut.py",), ("tests/experiment/test_stage_cut.py",)),
    "loss": Target(
        ("gnnhpc/training/loss_and_metrics.py",), ("tests/training/test_loss_and_metrics.py",)
    ),
    "record audit": Target(
        ("gnnhpc/validation/record_audit.py", "gnnhpc/validation/audit/step_times.py"),
        ("tests/validation/test_record_audit.py",),
    ),
    "chunks": Target(
        ("gnnhpc/graphs/halo_chunks.py", "gnnhpc/graphs/blocks.py", "gnnhpc/graphs/csr.py"),
        ("tests/graphs/test_csr.py", "tests/graphs/test_chunks.py"),
    ),
    "masks": Target(("gnnhpc/kernels/dropout_mask.py",), ("tests/kernels/test_dropout_mask.py",)),
    "intervals": Target(
        ("analysis/statistics/intervals.py",), ("tests/analysis/test_statistics.py",)
    ),
    "step times": Target(
        ("analysis/statistics/warmup.py",), ("tests/analysis/test_statistics.py",)
    ),
    "noise": Target(("analysis/statistics/counted_steps.py",), ("tests/analysis/test_load.py",)),
}
