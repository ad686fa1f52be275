"""Writes the result of an attempt that is done, audit included, or that a signal interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gnnhpc.check.audit import audit
from gnnhpc.check.audits.nodes import shared_node
from gnnhpc.check.audits.records import throughput, written
from gnnhpc.check.audits.reported import planned_steps, reported
from gnnhpc.check.audits.times import drift
from gnnhpc.check.audits.told import engine, told
from gnnhpc.check.observations import RankObservations
from gnnhpc.check.plain.parts import held_by
from gnnhpc.check.self_check import SelfCheck
from gnnhpc.records.failures import write_result_once
from gnnhpc.records.provenance import seconds_since_process_start
from gnnhpc.records.reported import ReportedStep
from gnnhpc.records.schema import Check, Result
from gnnhpc.records.so_far import by_file
from gnnhpc.records.writer import Written
from gnnhpc.run.attempt import Attempt
from gnnhpc.train.loop import Trainer
from gnnhpc.train.setup import TrainingParts


@dataclass(frozen=True)
class Finished:
    """What was seen of a run by its end, on rank 0; lists are in the order of ranks."""

    observations: Sequence[RankObservations]
    files: Sequence[Written]
    steps: Sequence[Sequence[ReportedStep]]
    """What the files of stages with the loss report, read back; of other ranks nothing."""
    differing: Sequence[str | None]
    """How each rank's file, read back, is not what was measured."""
    self_checks: Sequence[SelfCheck]
    """Before the first step, and after the last."""
    dead: Sequence[str]
    """Layers that had no gradient in the self-check before the first step, nor in its twin."""
    last_checks: Sequence[Check]
    """Of what the last step left behind."""


def write_done(attempt: Attempt, parts: TrainingParts, trainer: Trainer, found: Finished) -> None:
    """On rank 0: audit all ranks' observations and files, and write the result."""
    result = replace(
        attempt.result("done"),
        train_steps=attempt.cell.experiment.train_steps,
        test_steps=trainer.test_steps_done,
        samples_per_step=_samples(attempt, found),
        final=trainer.final,
        graph=parts.batches.graph_facts(),
        resumed_from=attempt.resumed_from,
        records={
            **by_file(found.files),
            # Beside this attempt's folder.
            **{f"../{name}": dict(one) for name, one in attempt.so_far.records.items()},
        },
    )
    checks = _checks(attempt, parts, trainer, found, result)
    if attempt.so_far.step_s:
        joined = drift(found.observations, attempt.so_far.step_s)
        checks = [
            joined if each.name == joined.name and each.verdict != "suspect" else each
            for each in checks
        ]
    result = replace(result, audit=attempt.so_far.judged_with(checks))
    flagged = f", flagged {', '.join(result.flags)}" if result.flags else ""
    if write_result_once(attempt.known_paths, result):
        print(f"{attempt.cell.id}: done{flagged}", flush=True)


def _samples(attempt: Attempt, found: Finished) -> int:
    """Of a step, over all replicas."""
    layout = attempt.cell.experiment.process_layout
    return sum(each.samples for each in found.observations if layout.stage_of(each.rank) == 0)


def _checks(
    attempt: Attempt, parts: TrainingParts, trainer: Trainer, found: Finished, result: Result
) -> list[Check]:
    """All of an attempt that has taken its last step; `result` is without them."""
    observations, experiment = found.observations, attempt.cell.experiment
    layout, holders = experiment.process_layout, held_by(experiment)
    start = attempt.resume_point.step if attempt.resume_point else 0
    said = {**result.layout, **result.provenance}
    return [
        *_self_checks(found.self_checks, seconds_since_process_start()),
        *audit(
            *(observations, parts.outlines, layout, parts.planned, holders),
            *(parts.batches.graph_facts(), found.dead),
        ),
        written(observations, found.files, found.differing),
        reported(
            *(observations, found.steps, trainer.final, layout, holders[-1]),
            planned_steps(experiment, start, result.train_steps),
        ),
        throughput(experiment, observations, _samples(attempt, found)),
        engine(experiment, observations),
        *shared_node(attempt.other_jobs),
        *found.last_checks,
        told(observations, experiment, said),
    ]


def _self_checks(checks: Sequence[SelfCheck], attempt_s: float) -> list[Check]:
    """In order; each is told what those before it took."""
    before = [sum(each.seconds for each in checks[:n]) for n in range(len(checks))]
    return [each.as_check(attempt_s, s) for each, s in zip(checks, before, strict=True)]


def write_interrupted(
    attempt: Attempt,
    parts: TrainingParts,
    trainer: Trainer,
    signal_name: str,
    step: int,
    *,
    refused: str | None,
    found: Finished | None,
) -> None:
    """On rank 0, after the checkpoint before training step `step`.

    `refused` says why the job is not put back into the queue, if it might have been; `found` is
    None where there was no time to look back, and whoever goes on then says so.
    """
    result = replace(
        attempt.result("interrupted"),
        train_steps=step,
        test_steps=trainer.test_steps_done,
        resumed_from=attempt.resumed_from,
        failure=None if refused is None else attempt.failure(refused),
    )
    if found is not None:
        result = replace(result, audit=_checks(attempt, parts, trainer, found, result))
    write_result_once(attempt.known_paths, result)
    if refused is not None:
        print(f"{attempt.cell.id}: {refused}", flush=True)
    print(f"{attempt.cell.id}: stopped by {signal_name} before training step {step}", flush=True)
    for each in result.audit:
        if each.verdict == "invalid":
            print(f"{attempt.cell.id}: wrong so far, {each.name}: {each.detail}", flush=True)
