"""A custom model with random numbers or buffers resumes to the bit."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from gnnhpc.core.errors import EXIT_UNFINISHED
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.copy_custom_models import copy_models
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.custom_model import CustomModel
from tests.tools.cells import GAT, Ran, manifest_of, run
from tests.training.test_resume import warn_at
from tests.validation.custom_models import GRAPH, write_model

pytestmark = pytest.mark.distributed

# A middle layer that draws random numbers or keeps a buffer, in the place of one that drops out.
CHANGES = (
    ("import torch\n", "import random\n\nimport numpy as np\nimport torch\n"),
    (
        "self.drop = Dropout(layer.name, 0.3)",
        "self.lin = nn.Linear(layer.inputs[0], layer.shape[0])\n        MADE",
    ),
    (
        "        return self.drop(x.relu(), context)",
        """\
        x = self.lin(x).relu()
        if self.training:
            FORWARD
        return x""",
    ),
)
HELD = {
    "torch": ("pass", "x = nn.functional.dropout(x, 0.3)"),
    "numpy": ("self.lin.weight.data *= 0.5 + np.random.rand()", "x = x * (0.5 + np.random.rand())"),
    "python": ("pass", "x = x * (0.5 + random.gauss(0.5, 0.1))"),
    "buffer": (
        "self.register_buffer('n', torch.ones(()), persistent=False)",
        "self.n += 1; x = x / float(self.n)",
    ),
}


def cell(root: Path, kind: tuple[str, str], **changes: object) -> Experiment:
    made, forward = kind
    changes_of_text = *CHANGES, ("MADE", made), ("FORWARD", forward)
    model = CustomModel.model_validate(write_model(root, GRAPH, *changes_of_text)).planned(root)
    steps = {"train_steps": 10, "test_steps": 1, "save_every": 5, "microbatches": 2}
    return Experiment.model_validate(GAT | {"model": model, **steps, **changes})


def whole_and_in_parts(
    root: Path,
    kind: tuple[str, str],
    layout: str,
    env: dict[str, str] | None = None,
    **changes: object,
) -> tuple[Ran, list[Ran]]:
    experiment = cell(root / "source", kind, layout=layout, **changes)
    warned = functools.partial(warn_at, 3, rank=experiment.layout.world_size - 1)
    found = []
    for name, plants in (("whole", [None]), ("parts", [warned, None])):
        (one,) = manifest_of(root / name, experiment)
        copy_models(RunPaths(root / name), [experiment])
        found.append([run(root / name, one, plant=plant, env=env) for plant in plants])
    (whole,), parts = found
    assert set(parts[0].statuses) == {EXIT_UNFINISHED}, parts[0].err
    assert parts[1].result.resumed_from is not None
    return whole, parts


CASES = [("torch", "dp2"), ("numpy", "pp2"), ("python", "dp2"), ("buffer", "pp2")]


@pytest.mark.quick("numpy-pp2")
@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_what_a_checkpoint_holds_goes_on_bitwise(kind: str, layout: str, tmp_path: Path) -> None:
    whole, parts = whole_and_in_parts(tmp_path, HELD[kind], layout)
    assert whole.losses() == [loss for part in parts for loss in part.losses()]
    assert parts[1].result.valid
