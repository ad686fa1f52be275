"""Custom models: their own layers, built anew for each micro-batch, are their reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnnhpc.records.schema import Check
from tests.tools.cells import GAT, GRAPHS, SAMPLED, VIG
from tests.validation.custom_models import GRAPH, IMAGES, write_model
from tests.validation.parity import checked

pytestmark = pytest.mark.distributed

Cell = dict[str, Any]
Change = tuple[str, str]
DP2 = {"layout": "dp2", "microbatches": 2, "batch_size": 10}
CACHED = (
    "        source, target = block.neighbours\n",
    """        if not hasattr(self, "edges"):
            self.edges = block.neighbours
        source, target = self.edges
        kept = (target < block.rows_out) & (source < len(x))
        source, target = source[kept], target[kept]
""",
)
WRONG_HALO = ("self.own(x[: block.rows_out])", "self.own(x[-block.rows_out :])")
RANDOM = (
    "return self.drop(x.relu(), context)",
    "return nn.functional.dropout(x.relu(), 0.3, self.training)",
)
SINGLE_CONV = ("return Conv(layer).to(options.dtype)", "return Conv(layer)")
BATCHNORM = (
    "self.drop = Dropout(layer.name, 0.3)",
    "self.norm, self.drop = nn.BatchNorm1d(layer.shape[0]), Dropout(layer.name, 0.3)",
)
NORMED = ("self.drop(x.relu(), context)", "self.drop(self.norm(x).relu(), context)")
IMAGE_NORM = (
    "class Middle(Out):\n",
    """class Middle(Out):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.norm = nn.BatchNorm1d(outputs)

""",
)
IMAGE_NORMED = ("return self.lin(x).tanh()", "return self.norm(self.lin(x).tanh())")
COUNTS = (
    "return self.lin(x).tanh()",
    "self.calls = getattr(self, 'calls', 0) + 1\n        return self.lin(x).tanh() / self.calls",
)
IMPORT_BATCHNORM = "import Layer, Model\nfrom gnnhpc.models.layers.batchnorm import BatchNorm"
SPECTRAL = (
    "self.lin = nn.Linear(inputs, outputs)",
    "self.lin = nn.utils.parametrizations.spectral_norm(nn.Linear(inputs, outputs))",
)


def verdict_of(text: str, cell: Cell, changes: list[Change], folder: Path) -> Check:
    model = write_model(folder, text, *changes)
    return checked(cell | {"model": model}, folder=folder)


@pytest.mark.quick("halo", "batchnorm in chunks")
@pytest.mark.parametrize(
    ("cell", "changes"),
    [
        pytest.param(GAT | {"chunks": "halo", "layout": "pp2"}, [], id="halo"),
        pytest.param(GAT | {"chunks": "halo", "layout": "dp2"}, [], id="halo in replicas"),
        pytest.param(GAT | {"chunks": "contiguous", "layout": "pp2"}, [], id="contiguous"),
        pytest.param(GAT | {"chunks": "clustered"}, [], id="clustered"),
        pytest.param(GAT | {"chunks": "halo"}, [BATCHNORM, NORMED], id="batchnorm in chunks"),
        pytest.param(SAMPLED | DP2, [], id="sampled"),
        pytest.param(
            SAMPLED | {"layout": "pp2", "sampling": {"fanouts": [4, 3], "evaluation": "sampled"}},
            [],
            id="sampled evaluation",
        ),
    ],
)
def test_a_model_of_graphs_agrees(cell: Cell, changes: list[Change], tmp_path: Path) -> None:
    verdict = verdict_of(GRAPH, cell, changes, tmp_path)
    assert verdict.verdict == "ok", verdict.detail


@pytest.mark.quick("batchnorm-pp2", "graphs-pp2")
@pytest.mark.parametrize("layout", ["seq", "pp2", "dp2-pp2"])
@pytest.mark.parametrize(
    ("cell", "changes"),
    [
        pytest.param(VIG, [], id="images"),
        pytest.param(VIG, [IMAGE_NORM, IMAGE_NORMED], id="batchnorm"),
        pytest.param(
            VIG | {"batchnorm": "deferred"},
            [
                IMAGE_NORM,
                IMAGE_NORMED,
                ("nn.BatchNorm1d(outputs)", "BatchNorm(outputs, 'deferred')"),
                ("import Layer, Model", IMPORT_BATCHNORM),
            ],
            id="deferred batchnorm",
        ),
        pytest.param(VIG, [SPECTRAL], id="spectral norm"),
        pytest.param(
            VIG | {"activation_checkpointing": "always"},
            [IMAGE_NORM, IMAGE_NORMED],
            id="recomputed batchnorm",
        ),
        pytest.param(GRAPHS | {"microbatches": 2, "batch_size": 8}, [], id="graphs"),
    ],
)
def test_a_model_of_images_or_graphs_agrees(
    cell: Cell, changes: list[Change], layout: str, tmp_path: Path
) -> None:
    verdict = verdict_of(IMAGES, cell | {"layout": layout}, changes, tmp_path)
    assert verdict.verdict == "ok", verdict.detail


@pytest.mark.quick("cached edges", "wrong halo rows")
@pytest.mark.parametrize(
    ("text", "cell", "change", "cause"),
    [
        pytest.param(
            *(GRAPH, GAT | {"chunks": "contiguous"}, CACHED, "outputs: conv0 in train step 0"),
            id="cached edges",
        ),
        pytest.param(
            *(GRAPH, GAT | {"chunks": "halo"}, WRONG_HALO, "outputs: conv0 in train step 0"),
            id="wrong halo rows",
        ),
        pytest.param(
            *(IMAGES, VIG, COUNTS, "outputs: middle in train step 0, micro-batch 1"),
            id="state between micro-batches",
        ),
    ],
)
def test_a_model_that_is_wrong_in_micro_batches_is_invalid(
    text: str, cell: Cell, change: Change, cause: str, tmp_path: Path
) -> None:
    verdict = verdict_of(text, cell, [change], tmp_path)
    assert verdict.verdict == "invalid"
    assert cause in verdict.detail


PP2 = {"layout": "pp2"}
TANH = "return self.lin(x).tanh()"
SINGLE_OUTPUT = (TANH, "return self.lin(x).tanh().float()")
SINGLE_CONSTANT = (TANH, "return x @ torch.ones(16, 16) + self.lin(x)")
FAILS = "fails in float64: RuntimeError"
INCONCLUSIVE: dict[str, tuple[str, Cell, Change, list[str]]] = {
    "random": (GRAPH, GAT | PP2, RANDOM, ["layer middle", "gnnhpc.Dropout"]),
    "parameters": (GRAPH, GAT, SINGLE_CONV, [f"layer conv0 {FAILS}", "options.dtype"]),
    "outputs": (IMAGES, VIG, SINGLE_OUTPUT, ["middle returns torch.float32", "options.dtype"]),
    "constants": (
        *(IMAGES, VIG | PP2, SINGLE_CONSTANT),
        [f"layer middle {FAILS}", "line ", "options.dtype"],
    ),
}


@pytest.mark.quick("random")
@pytest.mark.parametrize("name", INCONCLUSIVE)
def test_a_model_that_is_random_or_in_single_precision_is_inconclusive(
    name: str, tmp_path: Path
) -> None:
    text, cell, change, causes = INCONCLUSIVE[name]
    verdict = verdict_of(text, cell, [change], tmp_path)
    assert verdict.verdict == "inconclusive"
    assert all(cause in verdict.detail for cause in causes), verdict.detail
