"""Evaluation through a pipeline gives what one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.cells import gat, manifest_of, run

pytestmark = pytest.mark.distributed


@pytest.mark.slow
def test_a_stage_that_hands_its_input_on_evaluates_right(tmp_path: Path) -> None:
    """In evaluation a stage of dropout alone returns the very buffer that it received into."""
    graph = {"name": "synthetic-citation", "nodes": 10_000, "edges": 40_000, "features": 32}
    both = {
        "model": {"name": "gat", "layers": 3},
        "data": graph,
        "microbatches": 10,
        "train_steps": 1,
        "test_steps": 3,
    }
    piped = gat(layout="pp3", balance=[3, 1, 5], **both)
    cells = manifest_of(tmp_path, gat(**both), piped)
    alone, together = (run(tmp_path, cell) for cell in cells)
    assert together.losses("test") == pytest.approx(alone.losses("test"), rel=1e-6)
