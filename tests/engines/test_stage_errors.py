"""A user's layers that are well in one process and not in a stage: the layer is named, and why."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from gnnhpc.records.result_file import Result
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


def ran(folder: Path, change: tuple[str, str], *settings: str) -> tuple[list[int | None], str]:
    """Exit statuses and standard error of two stages of a changed model."""
    write_model(folder, IMAGES, change)
    command = ["run", "--model", "net:Net", "--data", "synthetic-cifar10", "--layout", "pp2"]
    command += ["--microbatches", "2", "--out", str(folder / "out")]
    command += [word for each in (*SETTINGS, *settings) for word in ("--set", each)]
    with started(command, 2, folder, plant=partial(add_folder, folder)) as ranks:
        return ranks.wait(), ranks.err(0) + ranks.err(1)


@pytest.mark.parametrize(
    ("output", "settings", "line"),
    [
        (
            "torch.relu_(x)",
            ("schedule=1f1b", "activation_checkpointing=always"),
            "layer middle changes its input in place",
        ),
        (
            "x.detach().relu()",
            ("schedule=zero-bubble",),
            "no gradient goes from layer middle to the stage before",
        ),
    ],
    ids=["in place", "detached"],
)
def test_the_layer_is_named(
    output: str, settings: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    change = MIDDLE, OTHER_MIDDLE.format(output)
    statuses, err = ran(tmp_path, change, "balance=[2,2]", *settings)
    assert statuses == [1, 1]
    assert line in err


def test_a_change_in_place_within_a_stage_is_well(tmp_path: Path) -> None:
    change = MIDDLE, OTHER_MIDDLE.format("torch.relu_(x)")
    assert_valid(tmp_path, *ran(tmp_path, change, "balance=[1,3]"))


def assert_valid(folder: Path, statuses: list[int | None], err: str) -> None:
    assert statuses == [0, 0], err
    (path,) = folder.glob("out/cells/*/*/result.json")
    assert Result.read(path).valid


@pytest.mark.slow
def test_an_outline_that_miscounts_is_reported_at_once(tmp_path: Path) -> None:
    change = '"narrow", (width,), (16,)', '"narrow", (width,), (16,), parameters=0'
    (status, _), err = ran(tmp_path, change)
    assert status == 2, err
    assert "model net:Net: parameters of narrow: found 0 in its outline; allowed: 3088" in err
