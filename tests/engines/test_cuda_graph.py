"""What a CUDA graph needs of a step, as far as a CPU can show it: nothing waits for the device, and
masks come from memory."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.cuda_graph import Captured, why_eager, with_keys
from gnnhpc.engines.engine import StepOutput
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels import compile
from gnnhpc.kernels.dropout_mask import MaskKeys, layer_mask
from gnnhpc.kernels.rowwise import drop_rows
from gnnhpc.training.setup import TrainingParts
from tests.engines.steps import CPU, parts_of
from tests.tools.backends import computed_by
from tests.tools.cells import GRAPH_MODELS, gat, sampled, vig

aten = torch.ops.aten
WAITING = (
    *(aten._local_scalar_dense, aten.is_nonzero, aten.equal, aten.lift_fresh, aten.nonzero),
    *(aten.masked_select, aten.unique_dim, aten._unique2, aten.unique_consecutive),
    *(aten.bincount, aten.repeat_interleave),
)
"""Operators whose result the host reads, whose size depends on values, or that copy numbers of the
host to the device."""


class RefusesToWait(TorchDispatchMode):
    """Raises for an operator that would wait for a GPU, which a capture does not allow."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        by_mask = func.overloadpacket is aten.index and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if func.overloadpacket in WAITING or by_mask:
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


STEPS = {
    "gat, dense": gat(data={**gat().data.model_dump(), "features": 8}),
    "vig": vig(),
    "vig, deferred": vig(batchnorm="deferred"),
    **{
        " ".join(map(str, model.values())): gat(model=model, microbatches=1)
        for model in (
            *GRAPH_MODELS,
            {"name": "gat", "implementation": "pyg"},
            {"name": "gcn", "implementation": "pyg"},
        )
    },
}


@pytest.mark.parametrize("experiment", STEPS.values(), ids=STEPS)
def test_no_step_waits_for_the_device(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile, "load_kernel", lambda name: None)
    with computed_by("torch"):
        parts = parts_of(experiment)
        parts.stage.train()
        keys = MaskKeys(CPU)
        first, second = (keyed(parts, step, keys) for step in range(2))
        # The first step may prepare what blocks keep.
        parts.engine.train_step(first)
        parts.engine.evaluate(first)
        with RefusesToWait():
            parts.engine.train_step(second)
            parts.engine.evaluate(second)


def keyed(parts: TrainingParts, step: int, keys: MaskKeys) -> Batch:
    """The mini-batch of a training step, whose masks have their keys in memory."""
    keys.set_step(step)
    keys.upload()
    with parts.batches.open("train", step, step + 1) as batches:
        return with_keys(next(batches), keys)


CODE = [
    "torch",
    "c++",
    pytest.param(
        "triton",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("triton") is None, reason="triton is not installed"
        ),
    ),
]


@pytest.mark.parametrize("code", CODE)
def test_masks_by_keys_in_memory_are_those_of_their_step(code: Any) -> None:
    keys, x, rows = MaskKeys(CPU), torch.ones(40, 8), torch.arange(40)
    # Made in step 3, as in a capture, and read in the steps that come after.
    keys.set_step(3)
    mask = keys.mask(0, "conv1", 0.5)
    with computed_by(code):
        for step in (3, 4, 11):
            keys.set_step(step)
            keys.upload()
            expected = drop_rows(x, rows, layer_mask(0, step, "conv1", 0.5))
            assert torch.equal(drop_rows(x, rows, mask), expected)


def test_a_step_with_keys_in_memory_is_the_same_to_the_bit() -> None:
    outputs = []
    for with_them in (False, True):
        parts = parts_of(gat())
        parts.stage.train()
        with parts.batches.open("train", 2, 3) as batches:
            batch = keyed(parts, 2, MaskKeys(CPU)) if with_them else next(batches)
        outputs.append(parts.engine.train_step(batch).outputs)
    assert all(map(torch.equal, *outputs))


def captured(batch: Batch) -> Captured:
    return Captured(cast(Any, None), batch, StepOutput())


def test_a_graph_of_images_takes_others_into_its_memory() -> None:
    with parts_of(vig()).batches.open("train", 0, 2) as batches:
        first = next(batches)
        graph, inputs = captured(first), [each.inputs for each in first.microbatches]
        second = next(batches)
        assert graph.take(second)
        for here, there in zip(inputs, second.microbatches, strict=True):
            assert isinstance(here, Tensor)
            assert isinstance(there.inputs, Tensor)
            assert here.data_ptr() != there.inputs.data_ptr()
            assert torch.equal(here, there.inputs)
        assert not graph.take(replace(second, valid_targets=1))
        assert not graph.take(replace(second, microbatches=second.microbatches[:1]))


def test_a_graph_of_chunks_takes_no_other_chunks() -> None:
    found = []
    for _ in range(2):
        with parts_of(gat()).batches.open("train", 0, 2) as batches:
            found.append(list(batches))
    graph = captured(found[0][0])
    assert graph.take(found[0][1])
    assert not graph.take(found[1][1])


def test_why_steps_are_not_captured() -> None:
    gpu = torch.device("cuda", 0)
    assert why_eager(gat(), gpu) is None
    assert why_eager(vig(), gpu) is None
    assert why_eager(gat(cuda_graph="off"), gpu) == "cuda_graph is off"
    assert why_eager(gat(), CPU) == "the device is no GPU"
    assert why_eager(sampled(), gpu) == "each mini-batch has other shapes"
    assert why_eager(vig(layout="pp2"), gpu) == "stages wait for one another's transfers"
