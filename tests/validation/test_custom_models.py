"""Custom models: their own layers, built anew for each micro-batch, are their reference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.tools.cells import GAT, GRAPHS, SAMPLED, VIG
from tests.validation.custom_models import GRAPH, IMAGES, write_model
from tests.validation.parity import checked

pytestmark = pytest.mark.distributed

Change = tuple[str, str]
PP2 = {"layout": "pp2"}
HALO, CONTIGUOUS, CLUSTERED = (
    GAT | {"chunks": chunks} for chunks in ("halo", "contiguous", "clustered")
)
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
GRAPH_NORM = [
    (
        "self.drop = Dropout(layer.name, 0.3)",
        "self.norm, self.drop = nn.BatchNorm1d(layer.shape[0]), Dropout(layer.name, 0.3)",
    ),
    ("self.drop(x.relu(), context)", "self.drop(self.norm(x).relu(), context)"),
]
TANH = "return self.lin(x).tanh()"
IMAGE_NORM = [
    (
        "class Middle(Out):\n",
        """class Middle(Out):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.norm = nn.BatchNorm1d(outputs)

""",
    ),
    (TANH, "return self.norm(self.lin(x).tanh())"),
]
DEFERRED_NORM = [
    *IMAGE_NORM,
    ("nn.BatchNorm1d(outputs)", "BatchNorm(outputs, 'deferred')"),
    (
        "import Layer, Model",
        "import Layer, Model\nfrom gnnhpc.models.layers.batchnorm import BatchNorm",
    ),
]
COUNTS = (TANH, f"self.calls = getattr(self, 'calls', 0) + 1\n        {TANH} / self.calls")
SPECTRAL = (
    "self.lin = nn.Linear(inputs, outputs)",
    "self.lin = nn.utils.parametrizations.spectral_norm(nn.Linear(inputs, outputs))",
)
SINGLE_OUTPUT = (TANH, f"{TANH}.float()")
SINGLE_CONSTANT = (TANH, "return x @ torch.ones(16, 16) + self.lin(x)")


@dataclass(frozen=True)
class Case:
    """A cell, a model with some text replaced, and its verdict with parts of the cause."""

    cell: dict[str, Any]
    changes: list[Change]
    verdict: str = "ok"
    causes: tuple[str, ...] = ()
    text: str = GRAPH


def of_images(cell: dict[str, Any], *changes: Change, verdict: str = "ok", **more: Any) -> Case:
    return Case(cell, list(changes), verdict, text=IMAGES, **more)


FAILS = "fails in float64: RuntimeError"
CASES = {
    "halo": Case(HALO | PP2, []),
    "halo in replicas": Case(HALO | {"layout": "dp2"}, []),
    "contiguous": Case(CONTIGUOUS | PP2, []),
    "clustered": Case(CLUSTERED, []),
    "batchnorm in chunks": Case(HALO, GRAPH_NORM),
    "sampled": Case(SAMPLED | {"layout": "dp2", "microbatches": 2, "batch_size": 10}, []),
    "sampled evaluation": Case(
        SAMPLED | PP2 | {"sampling": {"fanouts": [4, 3], "evaluation": "sampled"}}, []
    ),
    **{
        f"{name}-{layout}": of_images(cell | {"layout": layout}, *changes)
        for layout in ("seq", "pp2", "dp2-pp2")
        for name, cell, changes in (
            ("images", VIG, []),
            ("batchnorm", VIG, IMAGE_NORM),
            ("deferred batchnorm", VIG | {"batchnorm": "deferred"}, DEFERRED_NORM),
            ("spectral norm", VIG, [SPECTRAL]),
            ("recomputed batchnorm", VIG | {"activation_checkpointing": "always"}, IMAGE_NORM),
            ("graphs", GRAPHS | {"microbatches": 2, "batch_size": 8}, []),
        )
    },
    "cached edges": Case(CONTIGUOUS, [CACHED], "invalid", ("outputs: conv0 in train step 0",)),
    "wrong halo rows": Case(HALO, [WRONG_HALO], "invalid", ("outputs: conv0 in train step 0",)),
    "state between micro-batches": of_images(
        *(VIG, COUNTS),
        verdict="invalid",
        causes=("outputs: middle in train step 0, micro-batch 1",),
    ),
    "random": Case(GAT | PP2, [RANDOM], "inconclusive", ("layer middle", "gnnhpc.Dropout")),
    "parameters in single precision": Case(
        GAT, [SINGLE_CONV], "inconclusive", (f"layer conv0 {FAILS}", "options.dtype")
    ),
    "outputs in single precision": of_images(
        *(VIG, SINGLE_OUTPUT),
        verdict="inconclusive",
        causes=("middle returns torch.float32", "options.dtype"),
    ),
    "constants in single precision": of_images(
        *(VIG | PP2, SINGLE_CONSTANT),
        verdict="inconclusive",
        causes=(f"layer middle {FAILS}", "line ", "options.dtype"),
    ),
}


@pytest.mark.quick(
    *("halo", "batchnorm in chunks", "batchnorm-pp2", "graphs-pp2"),
    *("cached edges", "wrong halo rows", "random"),
)
@pytest.mark.parametrize("name", CASES)
def test_a_custom_model(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = write_model(tmp_path, case.text, *case.changes)
    check = checked(case.cell | {"model": model}, folder=tmp_path)
    assert check.verdict == case.verdict, check.detail
    assert all(cause in check.detail for cause in case.causes), check.detail
