"""A custom model with random numbers or buffers resumes to the bit."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from gnnhpc.core.errors import EXIT_UNFINISHED
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.custom_model_files import copy_models
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.custom_model import CustomModel
from tests.tools.cells import GAT, manifest_of, run
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
    "torch, numpy and python": (
        "self.lin.weight.data *= 0.5 + np.random.rand()",
        "x = nn.functional.dropout(x, 0.3) * (np.random.rand() + random.gauss(0.5, 0.1))",
    ),
    "buffer": (
        "self.register_buffer('n', torch.ones(()), persistent=False)",
        "self.n += 1; x = x / float(self.n)",
    ),
}


CASES = [("torch, numpy and python", "pp2"), ("buffer", "dp2")]


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_what_a_checkpoint_holds_goes_on_bitwise(kind: str, layout: str, tmp_path: Path) -> None:
    made, forward = HELD[kind]
    changes = *CHANGES, ("MADE", made), ("FORWARD", forward)
    source = tmp_path / "source"
    model = CustomModel.model_validate(write_model(source, GRAPH, *changes)).planned(source)
    steps = {"train_steps": 10, "test_steps": 1, "save_every": 5, "microbatches": 2}
    experiment = Experiment.model_validate(GAT | {"model": model, "layout": layout, **steps})
    found = []
    for name, plants in (("whole", [None]), ("parts", [functools.partial(warn_at, 3), None])):
        (one,) = manifest_of(tmp_path / name, experiment)
        copy_models(RunPaths(tmp_path / name), [experiment])
        found.append([run(tmp_path / name, one, plant=plant) for plant in plants])
    (whole,), parts = found
    assert set(parts[0].statuses) == {EXIT_UNFINISHED}, parts[0].err
    assert parts[1].result.resumed_from is not None
    assert whole.losses() == [loss for part in parts for loss in part.losses()]
    assert parts[1].result.valid
