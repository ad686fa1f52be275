"""Cells that really ran: siblings agree whatever computes them, and one that errs is named."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.loading.run import Run, load
from analysis.summary.summary_table import summarise
from analysis.timeline.step_timeline import measured_timeline
from gnnhpc.batches import image_loader
from gnnhpc.core.bounds import bound
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.run_paths import RunPaths
from tests.tools.cells import gat, manifest_of, run, vig
from tests.tools.result_files import rewrite_result

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

REFERENCE = {"model": {"name": "gat", "implementation": "reference"}}
CELLS = [
    vig(),
    vig(layout="pp2", schedule="1f1b"),
    vig(layout="dp2", batch_size=4, microbatches=2),
    vig(layout="pp2", schedule="interleaved", virtual_stages=2),
    gat(microbatches=1),
    gat(layout="pp2", microbatches=2, chunks="halo", engine="pipelining"),
    gat(layout="pp2", microbatches=3, chunks="halo", schedule="zero-bubble", spans=True),
    gat(microbatches=3, chunks="halo", **REFERENCE),
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "healthy"
    for cell in manifest_of(root, *CELLS):
        assert set(run(root, cell).statuses) == {0}
    return root


def test_what_computes_a_step_does_not_change_it(ran: Path) -> None:
    found = load(ran)
    assert (found.siblings.families, len(found.siblings.compared)) == (2, len(CELLS))
    assert not found.siblings.accusations
    assert found.cells["valid"].all()
    assert found.siblings.steps[1] == 6


def test_records_of_several_parts_a_stage_are_read_as_they_are_written(ran: Path) -> None:
    found = load(ran)
    (cell,) = found.cells.loc[found.cells["parts"] == 2, "cell"]
    assert set(found.parts["cell"]) == {cell}
    sums = found.parts.groupby(["phase", "step", "rank"], observed=True)["forward_s"].sum()
    ranks = found.ranks[found.ranks["cell"] == cell].set_index(["phase", "step", "rank"])
    np.testing.assert_allclose(sums, ranks.loc[sums.index, "forward_s"], atol=1e-6)
    summary = summarise(found)
    one = summary[(summary["parts"] == 2) & (summary["phase"] == "train")].iloc[0]
    assert one["bound"] == bound(1, 2, int(one["microbatches"]), 2)
    assert one["ideal_step_s"] > 0.0


def test_records_of_weights_apart_are_read_as_they_are_written(ran: Path) -> None:
    found = load(ran)
    (cell,) = found.cells.loc[found.cells["schedule"] == "zero-bubble", "cell"]
    spans = found.spans[(found.spans["cell"] == cell) & (found.spans["name"] == "weights")]
    seconds = (spans["end_s"] - spans["start_s"]).groupby([spans["step"], spans["rank"]]).sum()
    ranks = found.ranks[(found.ranks["cell"] == cell) & (found.ranks["phase"] == "train")]
    told = ranks.set_index(["step", "rank"])["weights_s"]
    np.testing.assert_allclose(seconds, told.loc[seconds.index], atol=1e-6)
    assert (told > 0.0).all()
    timeline = measured_timeline(found, cell)
    kinds = Counter(bar.name for bar in timeline.ideal)
    assert kinds == {"forward": 6, "backward": 6, "weights": 6}
    summary = summarise(found)
    one = summary[(summary["schedule"] == "zero-bubble") & (summary["phase"] == "train")].iloc[0]
    assert bound(1, 2, 3) < one["bound"] <= 2.0


def another_mini_batch_in_step_4() -> None:
    true = image_loader.epoch_indices

    def skipping(*arguments: Any) -> Any:
        *others, step = arguments
        return true(*others, step + (step == 4))

    image_loader.epoch_indices = skipping


def test_an_attempt_that_goes_wrong_in_one_step_is_named(ran: Path, tmp_path: Path) -> None:
    """By its siblings, and by the earlier attempt; where that is all there is, neither is believed.

    The other attempt is of the same cell, so without siblings it is one word against another.
    """
    root = tmp_path / "wrong"
    shutil.copytree(ran, root)
    cell = manifest_of(tmp_path / "other", CELLS[1])[0]
    assert set(run(root, cell, plant=another_mini_batch_in_step_4).statuses) == {0}
    found = _believed_by_its_audit(root, CELLS[1])
    assert list(found.cells["flags"].str.contains("siblings")) == [
        cell is CELLS[1] for cell in CELLS
    ]
    (detail,) = found.checks.loc[found.checks["name"] == "siblings", "detail"]
    assert "attempt 2: training loss of step 4" in detail
    assert "alone against 4 that agree" in detail
    for other in (CELLS[0], *CELLS[2:4]):
        shutil.rmtree(RunPaths(root).cell(other.id).root)
    alone = load(root)
    (detail,) = alone.checks.loc[alone.checks["name"] == "siblings", "detail"]
    assert "nobody is acquitted" in detail


def _believed_by_its_audit(root: Path, cell: Experiment) -> Run:
    """The run as if the cell's own audit had passed its newest attempt: siblings are to judge."""
    path = RunPaths(root).cell(cell.id).attempts()[-1].result

    def acquitted(result: dict[str, Any]) -> None:
        for check in result["audit"]:
            check["verdict"] = "ok" if check["verdict"] == "invalid" else check["verdict"]

    rewrite_result(path, acquitted)
    return load(root)
