"""Compares what siblings of a run learnt: cells, repeated attempts, and steps done twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from analysis.across.likeness import Facts
from analysis.across.sibling import Sibling
from analysis.across.sibling_key import (
    configuration,
    evaluated_after,
    evaluation_key,
    training_key,
)
from analysis.across.siblings import Siblings, compare_siblings
from analysis.loading.attempts import Attempt, resume_chain
from analysis.loading.learnt import Key, Learnt, join_resumed, learnt_by_attempt
from analysis.loading.rank_files import read_rank_files
from analysis.loading.run_folder import RunFolder, rank_files
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.experiment import Experiment


def siblings_of_run(folder: RunFolder, facts: Mapping[Key, Facts]) -> Siblings:
    """Compare the valid attempts of all cells, and the attempts that these resumed.

    Another valid attempt at a cell whose records cannot be read any more is left out: it does not
    count.
    """
    learnt = learnt_by_attempt(folder.frames, folder.files)
    found = list(_siblings(folder, learnt, facts))
    cells = [
        (folder.manifest[number].experiment, _draws_by_itself(folder.attempts_of[number]))
        for number, _ in found
    ]
    return compare_siblings(
        [sibling for _, sibling in found],
        [training_key(experiment, draws_by_itself=draws) for experiment, draws in cells],
        [evaluation_key(experiment, draws_by_itself=draws) for experiment, draws in cells],
    )


def _goes_on_otherwise(attempt: Attempt) -> bool:
    """Whether a user's layers went on from other values than they had, which its flag tells."""
    audit = attempt.result.audit if attempt.result is not None else []
    return any(check.name == "not-restored" for check in audit)


def _draws_by_itself(attempts: list[Attempt]) -> bool:
    """Whether a self-check found a layer that draws random numbers of its own."""
    audits = [each.result.audit for each in attempts if each.result is not None]
    return any("random_layer" in check.values for audit in audits for check in audit)


def _siblings(
    folder: RunFolder, learnt: dict[Key, Learnt], facts: Mapping[Key, Facts]
) -> Iterator[tuple[int, Sibling]]:
    """(the cell's position, what one of its attempts learnt)."""
    for number, cell in enumerate(folder.manifest):
        chosen, attempts = folder.chosen[number], folder.attempts_of[number]
        if chosen is None or not chosen.valid:
            continue
        for attempt in _attempts_to_compare(chosen, attempts):
            if _goes_on_otherwise(attempt):
                continue
            if (number, attempt.number) not in learnt:
                _read_also(folder, number, attempt, learnt)
            chain = resume_chain(attempt, attempts)
            losses, norms, tests = join_resumed(number, chain, learnt)
            if losses.size:
                yield (
                    number,
                    Sibling(
                        cell.id,
                        attempt.number,
                        configuration(cell.experiment),
                        _plainness(cell.experiment),
                        losses,
                        norms,
                        {
                            evaluated_after(step, cell.experiment): loss
                            for step, loss in tests.items()
                        },
                        _ways(cell.experiment),
                        cell.experiment.dtype,
                        facts.get((number, attempt.number), {}),
                    ),
                )


def _attempts_to_compare(chosen: Attempt, attempts: list[Attempt]) -> list[Attempt]:
    """The valid ones, and of those that the chosen one resumed each that went on after it."""
    resumed = {use.attempt.number for use in resume_chain(chosen, attempts) if use.stop is not None}
    return [attempt for attempt in attempts if attempt.valid or attempt.number in resumed]


def _read_also(folder: RunFolder, number: int, attempt: Attempt, learnt: dict[Key, Learnt]) -> None:
    attempts = folder.attempts_of[number]
    files = rank_files(number, folder.manifest[number], attempt, attempts)
    try:
        frames = read_rank_files(files)
    except InputError:
        return
    learnt |= {
        key: one for key, one in learnt_by_attempt(frames, files).items() if key not in learnt
    }


def _plainness(experiment: Experiment) -> tuple[int, ...]:
    return (
        int(experiment.layout.world_size == 1),
        int(getattr(experiment.model, "implementation", None) == "pyg"),
        int(experiment.batch_size is not None or experiment.total_chunks == 1),
    )


def _ways(experiment: Experiment) -> tuple[str, ...]:
    """Whose layers; and in how many parts each step is summed up."""
    layers = str(getattr(experiment.model, "implementation", "own"))
    return layers, f"{layers} {experiment.layout.replicas} {experiment.microbatches}"
