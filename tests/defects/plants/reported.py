"""What is reported of a run whose steps are right: metrics, waiting for data, memory."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

from gnnhpc.batches.batch import Batch
from gnnhpc.batches.image_loader import ImageLoader
from gnnhpc.engines.sequential import SequentialEngine
from gnnhpc.records.schema import StepRecord
from gnnhpc.records.writer import RecordWriter
from gnnhpc.run import results
from gnnhpc.tasks.classification import Classification
from gnnhpc.training import loop
from gnnhpc.training.loop import TrainingLoop
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around

KIND = "what is reported"
defect = functools.partial(planted, kind=KIND)


@defect("metrics wrong from an evaluation's second mini-batch on", setting=settings.VIG)
def second_mini_batch() -> None:
    taken = [0]

    def tally(true: Any, task: Any, phase: str, *args: Any) -> Any:
        found = true(task, phase, *args)
        if phase == "test":
            taken[0] += 1
            # The first is a self-check's.
            if taken[0] > 1 and taken[0] % 2:
                total, count = found["loss"]
                found |= {"loss": (total / 2, count), "accuracy": (count, count)}
        return found

    around(Classification, "tally", tally)


@defect("losses halved on the way to the file", setting=settings.VIG)
def halved_losses() -> None:
    def write(true: Any, writer: RecordWriter, *records: Any) -> None:
        true(writer, *(_halved(r) if isinstance(r, StepRecord) else r for r in records))

    around(RecordWriter, "write", write)


def _halved(record: StepRecord) -> StepRecord:
    return record if record.loss is None else dataclasses.replace(record, loss=record.loss / 2)


@defect("test metrics of one replica reported as those of all", setting=settings.VIG_REPLICAS)
def one_replica() -> None:
    def gather(true: Any, trainer: Trainer, phase: str, *args: Any) -> Any:
        found = true(trainer, phase, *args)
        if phase == "test" and "replica_loss" in found:
            found["loss"] = found["replica_loss"]
        return found

    around(Trainer, "_gather_metrics", gather)


@defect("accuracies higher than counted", setting=settings.VIG)
def higher() -> None:
    def gather(true: Any, trainer: Trainer, *args: Any) -> Any:
        found = true(trainer, *args)
        found["accuracy"] = min(1.0, found["accuracy"] + 0.5)
        return found

    around(Trainer, "_gather_metrics", gather)


@defect("a final accuracy that no evaluation gave", setting=settings.VIG_SEQUENTIAL)
def other_final() -> None:
    def write(true: Any, attempt: Any, parts: Any, trainer: Trainer, *args: Any) -> None:
        trainer.final["test_accuracy"] = 0.99
        true(attempt, parts, trainer, *args)

    around(results, "write_done", write)


@defect("a mini-batch evaluated in another's place", setting=settings.VIG_SEQUENTIAL)
def another_evaluated() -> None:
    kept: list[Any] = []

    def evaluate(true: Any, engine: Any, batch: Batch) -> Any:
        kept.append(true(engine, batch))
        # The first is a self-check's; then every second of an evaluation is the one before.
        return kept[-2] if len(kept) > 1 and len(kept) % 2 else kept[-1]

    around(SequentialEngine, "evaluate", evaluate)


@defect("waiting for data recorded as none", setting=settings.VIG)
def no_waiting() -> None:
    def take(true: Any, loader: ImageLoader) -> Any:
        time.sleep(0.05)
        return true(loader)

    def record(true: Any, trainer: Trainer, step: int, batch: Batch, *args: Any) -> Any:
        trainer._waited_s = 0.0
        return true(trainer, step, batch, *args)

    around(ImageLoader, "__next__", take)
    around(Trainer, "_record_step", record)


@defect("layer groups under each other's names", setting=settings.VIG)
def swapped_groups() -> None:
    def groups(true: Any, trainer: Trainer, *args: Any) -> Any:
        found = true(trainer, *args)
        return dict(zip(found, reversed(found.values()), strict=True))

    around(Trainer, "_groups", groups)


@defect("a peak of memory of one MiB", setting=settings.VIG)
def small_peak() -> None:
    around(loop, "peak_rss_mib", lambda true: 1.0)
