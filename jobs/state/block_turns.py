"""Whose turn it is in the blocks that run, as far as the attempts of their cells tell."""

from __future__ import annotations

from collections.abc import Mapping

from gnnhpc.records.block_table import BlockLine
from gnnhpc.records.run_paths import AttemptPaths
from jobs.cluster.slurm_queue import QueueAnswer, QueuedJob
from jobs.folder.attempt_files import last_write_time, read_attempt_job, read_attempt_result
from jobs.folder.run_blocks import Key
from jobs.state.live_cells import WAITING_IN_SLURM, epoch_seconds
from jobs.state.run_reading import ReadRun
from jobs.state.states import Turn


def block_turns(
    read: ReadRun, queued: Mapping[Key, QueuedJob], answer: QueueAnswer
) -> dict[Key, Turn]:
    """Of each cell of a block in the queue, whether it waits, runs, or has had its turn.

    A block goes through its cells in order, so the one that was written last is where it is now. In
    a block that was requeued those behind it come once more, but for the valid ones.
    """
    turns: dict[Key, Turn] = {}
    for (array, number), (task, begun) in _queued_blocks(read, queued, answer).items():
        lines = read.blocks.lines(array, number)
        tried = [_attempt_of_job(read, line, task) for line in lines]
        written = [last_write_time(attempt) if attempt else 0.0 for attempt in tried]
        now = written.index(max(written)) if begun and any(written) else -1
        for place, line in enumerate(lines):
            key = (line.array, line.index)
            job = queued.get(key)
            if job is None or job.array == array:
                turns[key] = _turn(place - now, tried[place])
    return turns


def _queued_blocks(
    read: ReadRun, queued: Mapping[Key, QueuedJob], answer: QueueAnswer
) -> dict[Key, tuple[str, bool]]:
    """By array and number of each block, Slurm's name of its task, and whether that has begun.

    Where the queue did not answer, as the accounting says.
    """
    found: dict[Key, tuple[str, bool]] = {}
    for key, job in queued.items():
        if job.array != key[0]:
            number = read.blocks.index(job.array, key)
            found[job.array, number] = (job.task(number), job.state not in WAITING_IN_SLURM)
    if answer.answered:
        return found
    for key, submission in read.submitted.items():
        if submission.cluster == "slurm" and submission.array != key[0]:
            number = read.blocks.index(submission.array, key)
            task = submission.task(number)
            if answer.accounted_as_live(task):
                begun = answer.accounted[task] not in WAITING_IN_SLURM
                found[submission.array, number] = (task, begun)
    return found


def _attempt_of_job(read: ReadRun, line: BlockLine, task: str) -> AttemptPaths | None:
    """The newest attempt of a cell, if this task of Slurm's made it."""
    attempts = read.attempts_of.get(line.cell) or read.paths.cell(line.cell).attempts()[::-1]
    if not attempts:
        return None
    job = read_attempt_job(attempts[0])
    if job is not None:
        return attempts[0] if job == task else None
    # Its ranks have written nothing yet: of this job unless it is from before the submission.
    submission = read.submitted.get((line.array, line.index))
    since = 0.0 if submission is None else epoch_seconds(submission.at)
    return attempts[0] if last_write_time(attempts[0]) >= since else None


def _turn(distance: int, attempt: AttemptPaths | None) -> Turn:
    """The turn of a cell so many places behind the one that the block is at."""
    result = read_attempt_result(attempt) if attempt is not None else None
    if distance > 0:
        return "over" if result is not None and result.valid else "waits"
    if distance < 0:
        return "over"
    if result is not None:
        # What was interrupted goes on in the same block.
        return "waits" if result.status == "interrupted" else "over"
    failed = attempt is not None and attempt.failure(0).exists()
    return "over" if failed else "runs"
