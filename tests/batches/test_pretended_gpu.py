"""Sampled mini-batches of a run on a GPU, which is pretended: all of them lies there, and is the
same as on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, BatchPlan
from gnnhpc.batches.prefetch import Ring
from gnnhpc.batches.sampled import placement, sampler_threads
from gnnhpc.batches.sampled.placement import KEPT_FREE
from gnnhpc.batches.sampled.sampled_batches import SampledBatches
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.records.schema import Phase
from tests.tools.backends import needs_dgl, needs_pyg_sampler
from tests.tools.cells import linked, sampled
from tests.tools.graphs import block_tensors
from tests.tools.pretended_gpu import GPU, PretendedGpu

pytestmark = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")
DENSE = {"name": "reddit-shaped", "nodes": 150, "edges": 1_500, "features": 32, "classes": 5}
HALVES = DENSE | {"storage": "float16"}
ROOM = {"all": 2**30, "features": KEPT_FREE * 150 * 32 * 4, "none": 0}
EXPERIMENTS = {
    "inductive": sampled(data=HALVES, sampling={"fanouts": [4, 3], "inductive": True}),
    "double": sampled(data=DENSE, dtype="float64", sampling={"fanouts": [4, 3], "workers": 0}),
    "parts": sampled(data=DENSE, microbatches=3, sampling={"fanouts": [2, 2]}),
    "evaluated": sampled(
        data=DENSE, sampling={"fanouts": [4, 3], "evaluation": "sampled"}, microbatches=2
    ),
    "links": linked(data=DENSE, sampling={"fanouts": [4, 4], "semantics": "once"}),
}


class Stream:
    """A stream that has always done what it was given, ahead of others."""

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        assert priority < 0, "the sampler's small kernels wait behind those of the step"

    def wait_stream(self, other: Stream) -> None: ...


class Reached:
    """An event of a device that is never behind."""

    def __init__(self, **_: Any) -> None: ...
    def record(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True


def batches_of(experiment: Experiment, device: torch.device) -> SampledBatches:
    on_gpu = device.type == "cuda"
    changes: dict[str, Any] = {"device": "gpu" if on_gpu else "cpu"}
    changes |= {} if experiment.evaluates_sampled else {"test_steps": 0}
    changed = experiment.model_copy(update=changes)
    mesh = Mesh(Layout(), 0, device, gpu="GPU-a" if on_gpu else None)
    return SampledBatches(BatchPlan(changed, outline(changed), mesh, None))


def tensors(batch: Batch) -> Iterator[Tensor]:
    for each in batch.microbatches:
        chunk, x = each.context.chunk, each.inputs
        assert x is not None
        yield from [x] if isinstance(x, Tensor) else [x.to_dense()]
        yield from (*each.targets.values(), chunk.nodes, chunk.degree)
        for block in chunk.blocks:
            yield from block_tensors(block)


def facts(batch: Batch) -> list[Any]:
    edges = batch.loading and batch.loading.edges
    return [batch.checksum, edges, batch.valid_targets, batch.samples]


def assert_same(gpu: PretendedGpu, on_gpu: Iterable[Batch], on_cpu: Iterable[Batch]) -> None:
    for mine, other in zip(on_gpu, on_cpu, strict=True):
        assert facts(mine) == facts(other)
        for x, y in zip(tensors(mine), tensors(other), strict=True):
            assert gpu.has(x)
            assert x.dtype == y.dtype
            assert x.cpu().equal(y)


@pytest.mark.parametrize(
    ("room", "places"),
    [("all", ("device", "device")), ("features", ("device", "host")), ("none", ("pinned", "host"))],
)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_mini_batches_on_a_gpu_are_those_on_a_cpu(
    name: str, room: str, places: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = EXPERIMENTS[name]
    halves = 2 if name == "inductive" and room == "features" else 1
    pretend(monkeypatch, ROOM[room] // halves)
    with PretendedGpu() as gpu:
        # The thread that samples beside the steps sees the same tensors.
        monkeypatch.setattr(sampler_threads, "compute_alone", gpu.__enter__)
        found = batches_of(experiment, GPU)
        assert (found.placement.features, found.placement.graph) == places
        wanted = batches_of(experiment, torch.device("cpu"))
        phases: list[Phase] = ["train", "test"] if experiment.evaluates_sampled else ["train"]
        for phase in phases:
            with found.open(phase, 0, 5) as on_gpu, wanted.open(phase, 0, 5) as on_cpu:
                assert_same(gpu, on_gpu, on_cpu)


@pytest.mark.parametrize(("room", "place"), [("all", "device"), ("none", "host")])
@pytest.mark.parametrize("sampler", ["pyg", "dgl"])
def test_a_gpu_has_what_libraries_sample_on_the_host(
    sampler: str, room: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DGL's wheels have no CUDA, which moving its graphs would need."""
    {"pyg": needs_pyg_sampler, "dgl": needs_dgl}[sampler]()
    sampling = {"fanouts": [4, 3], "sampler": sampler, "workers": 0}
    sampling |= {"fused": False} if sampler == "dgl" else {}
    experiment = sampled(data=DENSE, sampling=sampling)
    pretend(monkeypatch, ROOM[room])
    with PretendedGpu() as gpu:
        found, wanted = (batches_of(experiment, each) for each in (GPU, torch.device("cpu")))
        assert (found.placement.features, found.placement.graph) == (place, "host")
        with found.training(range(5)) as on_gpu, wanted.training(range(5)) as on_cpu:
            assert_same(gpu, on_gpu, on_cpu)


def test_a_mini_batch_is_recorded_without_reading_it_from_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its checksum is of nodes and labels that the host has, and no labels but these are copied."""
    pretend(monkeypatch, ROOM["all"])
    read, cpu = [], Tensor.cpu
    with PretendedGpu() as gpu:
        batches = batches_of(EXPERIMENTS["double"], GPU)
        monkeypatch.setattr(Tensor, "cpu", lambda x: read.append(gpu.has(x)) or cpu(x))
        with batches.open("train", 0, 1) as opened:
            (batch,) = opened
    assert batch.microbatches[0].context.chunk.targets.keys() == {"train"}
    assert read
    assert not any(read)


def pretend(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(placement, "free_bytes", lambda device: free)
    monkeypatch.setattr(sampler_threads, "Ring", lambda slots, pinned: Ring(slots))
    monkeypatch.setattr(torch.cuda, "Event", Reached)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: None)
