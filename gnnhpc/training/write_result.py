"""Writes the result of an attempt that is done, or that a signal interrupted; on rank 0."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from gnnhpc.core.provenance import seconds_since_process_start
from gnnhpc.records.record_writer import Written
from gnnhpc.records.result_file import final_key, write_result_once
from gnnhpc.records.resume_points import digests_by_file
from gnnhpc.records.schema import Check
from gnnhpc.training.attempt import Attempt
from gnnhpc.training.events import Validator
from gnnhpc.training.loop import TrainingLoop


def write_done(
    attempt: Attempt,
    loop: TrainingLoop,
    files: Sequence[Written],
    samples: int,
    checks: Sequence[Check],
    validator: Validator,
) -> None:
    """Write the result of an attempt that has taken its last step; `files` are all ranks',
    and `samples` those of a step of all replicas."""
    result = replace(
        attempt.result("done"),
        train_steps=loop.experiment.train_steps,
        test_steps=loop.test_steps_done,
        samples_per_step=samples,
        final={
            final_key(phase, name): value
            for phase, metrics in loop.final.items()
            for name, value in metrics.items()
        },
        graph=loop.parts.batches.graph_metadata(),
        resumed_from=attempt.resumed_from,
        records={
            **digests_by_file(files),
            # Beside this attempt's folder.
            **{f"../{name}": dict(one) for name, one in attempt.earlier.records.items()},
        },
    )
    began_s = time.perf_counter()
    audited = validator.audit(attempt.known_paths, result)
    validation_s = validator.seconds + time.perf_counter() - began_s
    result = replace(
        result,
        audit=attempt.earlier.merged_with([*checks, *audited]),
        validation={
            "seconds": round(validation_s, 3),
            "attempt_s": round(seconds_since_process_start(), 3),
        },
    )
    if write_result_once(attempt.known_paths, result):
        flagged = f", flagged {', '.join(result.flags)}" if result.flags else ""
        print(f"{attempt.cell.id}: done{flagged}", flush=True)


def write_interrupted(
    attempt: Attempt, loop: TrainingLoop, signal_name: str, step: int, *, refused: str | None
) -> None:
    """Write the result after the checkpoint before training step `step`.

    `refused` says why the job is not put back into the queue, if it might have been.
    """
    result = replace(
        attempt.result("interrupted"),
        train_steps=step,
        test_steps=loop.test_steps_done,
        resumed_from=attempt.resumed_from,
        failure=None if refused is None else attempt.failure(refused),
    )
    write_result_once(attempt.known_paths, result)
    if refused is not None:
        print(f"{attempt.cell.id}: {refused}", flush=True)
    print(f"{attempt.cell.id}: stopped by {signal_name} before training step {step}", flush=True)
