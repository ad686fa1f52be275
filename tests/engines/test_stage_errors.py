"""A user's layers that are well in one process and not in a stage: layer or line are named."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.tools.forked import started
from tests.validation.custom_models import IMAGES, add_folder, write_model

pytestmark = pytest.mark.distributed
MIDDLE = """class Middle(Out):
    def forward(self, x, context):
        return self.lin(x).tanh()
"""
OTHER_MIDDLE = """class Middle(nn.Identity):
    def forward(self, x, context):
        return {}
"""
SETTINGS = ("data.train=64", "data.test=32", "data.image_size=8", "batch_size=16", "train_steps=4")


CASES: list[tuple[str, tuple[str, ...], str]] = [
    (
        "torch.relu_(x)",
        ("balance=[2,2]", "schedule=1f1b", "activation_checkpointing=always"),
        "is being used in an in-place operation. (net.py, line ",
    ),
    (
        "x.detach().relu()",
        ("balance=[2,2]", "schedule=zero-bubble"),
        "no gradient goes from layer middle to the stage before",
    ),
]
"""A middle layer's output, settings, and what is said."""


@pytest.mark.parametrize(("output", "settings", "line"), CASES, ids=["in place", "detached"])
def test_it_is_named(output: str, settings: tuple[str, ...], line: str, tmp_path: Path) -> None:
    write_model(tmp_path, IMAGES, (MIDDLE, OTHER_MIDDLE.format(output)))
    command = ["run", "--model", "net:Net", "--data", "synthetic-cifar10", "--layout", "pp2"]
    command += ["--microbatches", "2", "--out", str(tmp_path / "out")]
    command += [word for each in (*SETTINGS, *settings) for word in ("--set", each)]
    with started(command, 2, tmp_path, plant=partial(add_folder, tmp_path)) as ranks:
        statuses, err = ranks.wait(), ranks.err(0) + ranks.err(1)
    assert statuses == [1, 1], err
    assert line in err
