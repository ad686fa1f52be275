"""What a result and its files tell of a run: engine, schedule, layout, hosts, versions, graph."""

from __future__ import annotations

import dataclasses
import functools
import tracemalloc
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gnnhpc import engines
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.batches.graph_set_batches import GraphSetBatches
from gnnhpc.check import self_check
from gnnhpc.engines import system_counters
from gnnhpc.engines.gradient_sync import Gradients
from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.stage import Stage
from gnnhpc.graphs import chunks
from gnnhpc.models.vig.model import Vig
from gnnhpc.records import writer
from gnnhpc.records.schema import StepRecord
from gnnhpc.run import rank_facts
from gnnhpc.run.attempt import Attempt
from gnnhpc.training import loop, setup
from gnnhpc.training.loop import TrainingLoop
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around, replace

KIND = "what is told of a run"
defect = functools.partial(planted, kind=KIND)


@defect("the native engine where torch's is told", setting=settings.VIG_TORCH)
def other_engine() -> None:
    around(engines, "build_engine", lambda true, name, plan: true("native", plan))


@defect("GPipe where 1F1B is told", setting=settings.VIG_1F1B)
def other_schedule() -> None:
    around(setup, "StagePlan", lambda true, **plan: true(**{**plan, "schedule": "gpipe"}))


@defect("another balance told than was cut", setting=settings.VIG)
def other_balance() -> None:
    def result(true: Any, attempt: Attempt, status: Any) -> Any:
        attempt.balance = [1, 1]
        return true(attempt, status)

    around(Attempt, "result", result)


@defect("other hosts told than ranks ran on", setting=settings.VIG)
def other_hosts() -> None:
    around(rank_facts, "rank_facts", lambda true, *args: true(*args) | {"host": "elsewhere"})


@defect("another version of torch told than is loaded", setting=settings.VIG)
def other_version() -> None:
    torch.__version__ = "1.0.0"


@defect("evaluations in mid-run left out", setting=settings.VIG)
def evaluated_at_the_end() -> None:
    def run(true: Any, trainer: Trainer, *args: Any) -> None:
        trainer.experiment = trainer.experiment.model_copy(update={"test_every": None})
        true(trainer, *args)

    around(Trainer, "run", run)


@defect("an evaluation by the parameters of the step before", setting=settings.VIG_SEQUENTIAL)
def old_parameters() -> None:
    kept: dict[int, list[torch.Tensor]] = {}

    def step(true: Any, trainer: Trainer, *args: Any) -> Any:
        kept[id(trainer.stage)] = [p.detach().clone() for p in trainer.stage.parameters()]
        return true(trainer, *args)

    def forward(true: Any, stage: Stage, *args: Any) -> Any:
        now = [p.detach().clone() for p in stage.parameters()]
        # In the step itself, and not where it is looked at again.
        if stage.training or id(stage) not in kept or not stage.timer or not stage.timer.in_step:
            return true(stage, *args)
        with torch.no_grad():
            for parameter, value in zip(stage.parameters(), kept[id(stage)], strict=True):
                parameter.copy_(value)
            found = true(stage, *args)
            for parameter, value in zip(stage.parameters(), now, strict=True):
                parameter.copy_(value)
        return found

    around(Trainer, "_train_step", step)
    around(Stage, "forward", forward)


@defect("samples that count padding", setting=settings.GAT)
def padding_counted() -> None:
    def batch(true: Any, batches: ChunkBatches, *args: Any) -> Any:
        found = true(batches, *args)
        return dataclasses.replace(found, samples=found.samples + 40)

    around(ChunkBatches, "_batch", batch)


@defect("redundancy that counts padding", setting=settings.GAT)
def redundancy_of_padding() -> None:
    def facts(true: Any, batches: ChunkBatches) -> Any:
        found = true(batches)
        rows = batches.chunkset.rows[0] * len(batches.chunkset.chunks)
        return found | {"node_redundancy": rows / batches.total_samples}

    around(ChunkBatches, "graph_facts", facts)


@defect("self-loops counted among the edges kept", setting=settings.GAT_CONTIGUOUS)
def loops_counted() -> None:
    around(chunks, "_real_edges", lambda true, block, edges: len(block.edge))


@defect("both directions of each edge counted again, of many graphs", setting=settings.GRAPHS)
def edges_counted_twice() -> None:
    def facts(true: Any, batches: GraphSetBatches) -> Any:
        found = true(batches)
        return found | {"edges": 2 * found["edges"]}

    around(GraphSetBatches, "graph_facts", facts)


@defect("drawn edges recorded twice", setting=settings.SAMPLED)
def drawn_twice() -> None:
    """By which so many seem to be computed in a second."""

    def recorded(true: Any, *args: Any, **values: Any) -> None:
        true(*args, **values | {"sampled_edges": 2 * (values["sampled_edges"] or 0)})

    around(StepRecord, "__init__", recorded)


@defect("all steps recorded as of the first epoch", setting=settings.VIG_SEQUENTIAL)
def one_epoch() -> None:
    around(StepRecord, "__init__", lambda true, *args, **v: true(*args, **v | {"epoch": 0}))


@defect("the gradient's norm of few parameters", setting=settings.VIG)
def part_of_the_norm() -> None:
    def norm(true: Any, gradients: Gradients) -> float | None:
        return float(gradients.flats[0][:8].norm()) if gradients.flats else None

    around(Gradients, "norm", norm)


@defect("seconds rounded to milliseconds in the file", setting=settings.VIG)
def milliseconds_written() -> None:
    def compact(true: Any, record: dict[str, Any]) -> dict[str, Any]:
        return {
            key: round(value, 3) if isinstance(value, float) and key.endswith("_s") else value
            for key, value in true(record).items()
        }

    around(writer, "_compact", compact)


@defect("spans twice as long in the file", setting=settings.VIG_SPANS)
def longer_spans() -> None:
    def spans(true: Any, *args: Any) -> list[Any]:
        return [dataclasses.replace(each, end_s=2 * each.end_s) for each in true(*args)]

    around(Trainer, "_spans", spans)


@defect("virtual memory recorded as the peak of resident", setting=settings.VIG)
def virtual_peak() -> None:
    def peak(true: Any) -> float:
        with Path("/proc/self/status").open(encoding="utf-8") as stream:
            (kib,) = [line.split()[1] for line in stream if line.startswith("VmPeak:")]
        return int(kib) / 1024

    around(loop, "peak_rss_mib", peak)


@defect("the self-check's peak of memory told as the steps'", setting=settings.VIG_SEQUENTIAL)
def peak_of_self_check() -> None:
    """As without /proc/self/clear_refs, where the self-check needs more than the run."""

    def larger(true: Any, *given: Any) -> Any:
        block = torch.ones(2**28, dtype=torch.uint8)
        del block
        return true(*given)

    replace(system_counters, "CLEAR_REFS", Path("/dev/null"))
    around(self_check, "twin_of", larger)


@defect("torch's anomaly detection left on", setting=settings.VIG)
def anomaly_detection() -> None:
    torch.autograd.set_detect_anomaly(True)


@defect("memory traced by Python", setting=settings.VIG_SEQUENTIAL)
def memory_traced() -> None:
    """As PYTHONTRACEMALLOC does: steps take ten times as long."""
    tracemalloc.start(10)


@defect("torch's profiler left on", setting=settings.VIG_SEQUENTIAL)
def profiler_on() -> None:
    torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]).start()


@defect("operations dispatched by a mode", setting=settings.VIG_SEQUENTIAL)
def dispatched() -> None:
    """As a counter of operations that nobody has ended."""

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(
            self, operation: Any, types: Any, given: Any = (), named: Any = None
        ) -> Any:
            return operation(*given, **(named or {}))

    def run(true: Any, *given: Any) -> Any:
        with Counting():
            return true(*given)

    around(Trainer, "run", run)


@defect("fused layers under the name of the reference", setting=settings.VIG_REFERENCE)
def fused_as_reference() -> None:
    around(Vig, "build", _built_as("fused"))


@defect("reference layers under the name of the fused ones", setting=settings.VIG_SEQUENTIAL)
def reference_as_fused() -> None:
    around(Vig, "build", _built_as("reference"))


def _built_as(implementation: str) -> Any:
    def build(true: Any, model: Vig, *args: Any) -> Any:
        return true(model.model_copy(update={"implementation": implementation}), *args)

    return build


@defect("another schedule told than the one that ran", setting=settings.VIG_1F1B)
def another_schedule() -> None:
    def result(true: Any, attempt: Attempt, status: Any) -> Any:
        found = true(attempt, status)
        return dataclasses.replace(found, layout=found.layout | {"schedule": "gpipe"})

    around(Attempt, "result", result)


@defect("more threads told than ranks had", setting=settings.VIG)
def more_threads() -> None:
    def result(true: Any, attempt: Attempt, status: Any) -> Any:
        found = true(attempt, status)
        return dataclasses.replace(found, provenance=found.provenance | {"threads": 16})

    around(Attempt, "result", result)


@defect("more threads told of each rank than it had", setting=settings.VIG)
def more_threads_a_rank() -> None:
    around(rank_facts, "rank_facts", lambda true, *args: true(*args) | {"threads": 16})


@defect("shared memory told where tensors went by gloo", setting=settings.VIG_BY_GLOO)
def shared_memory_told() -> None:
    replace(NativeEngine, "transfers", property(lambda engine: "shared memory"))


@defect("gloo told where tensors went through memory", setting=settings.VIG)
def gloo_told() -> None:
    replace(NativeEngine, "transfers", property(lambda engine: "gloo"))
