"""Files that are mutated, and the fast tests that must notice a change to them.

The tests run in the process that holds the mutant: ranks, which import the files anew, see none.
"""

from __future__ import annotations

TARGETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "layout": (("gnnhpc/core/layout.py",), ("tests/core/test_layout.py",)),
    "schedules": (("gnnhpc/core/schedules.py",), ("tests/core/test_schedules.py",)),
    "balance": (("gnnhpc/experiment/stage_cut.py",), ("tests/experiment/test_stage_cut.py",)),
    "loss": (
        ("gnnhpc/training/loss_and_metrics.py",),
        ("tests/training/test_loss_and_metrics.py",),
    ),
    "record audit": (
        ("gnnhpc/validation/record_audit.py", "gnnhpc/validation/audit/step_times.py"),
        ("tests/validation/test_record_audit.py",),
    ),
    "chunks": (
        ("gnnhpc/graphs/halo_chunks.py", "gnnhpc/graphs/blocks.py", "gnnhpc/graphs/csr.py"),
        ("tests/graphs/test_csr.py", "tests/graphs/test_chunks.py"),
    ),
    "masks": (("gnnhpc/kernels/dropout_mask.py",), ("tests/kernels/test_dropout_mask.py",)),
    "intervals": (("analysis/statistics/intervals.py",), ("tests/analysis/test_statistics.py",)),
    "step times": (
        ("analysis/statistics/find_warmup_end.py",),
        ("tests/analysis/test_statistics.py",),
    ),
    "noise": (("analysis/statistics/cut_warmup_steps.py",), ("tests/analysis/test_load.py",)),
}
"""By name the files of one idea, and the tests that must notice any change to them."""
