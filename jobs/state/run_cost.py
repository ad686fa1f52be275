"""What a run cost so far, and what the rest of it will, as far as its ended cells tell."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gnnhpc.experiment.manifest import Cell
from gnnhpc.experiment.manifest_lines import ManifestLine, parse_manifest_line, read_manifest_lines
from gnnhpc.records.cost import AccountedCost, attempt_core_s, read_accounted, write_accounted
from gnnhpc.records.run_facts import read_provenance
from gnnhpc.records.run_paths import AttemptPaths, RunPaths
from gnnhpc.records.schema import Result, read_if_whole
from jobs.cluster.slurm_accounts import AccountedTask, ask_sacct
from jobs.folder.attempt_files import list_attempts, read_attempt_process
from jobs.folder.locked_files import utc_now
from jobs.folder.run_blocks import read_blocks
from jobs.folder.submission_records import SubmissionRecord, read_submissions

_REPEATED = ("seed", "repeat")
_BETWEEN_S = 2.0
"""From one question to sacct to the next."""


@dataclass(frozen=True)
class RecordedCost:
    """What the results of a run's attempts say: from the start of their ranks to their results."""

    core_s: float
    attempts: int
    untold: int
    """Attempts that do not say, as they have no result."""


@dataclass(frozen=True)
class PredictedCost:
    """What the cells that are not done will take, by those that are."""

    core_s: float
    cells: int
    unknown: int
    """Further cells of whose array none is done, or none says what it took."""


@dataclass(frozen=True)
class RunCost:
    """All that is known of the cost of a run."""

    recorded: RecordedCost
    accounted: AccountedCost | None
    """What Slurm's accounting says; None where it cannot be asked, or the run has no job in it."""
    predicted: PredictedCost


class CellCosts:
    """What each done cell of a run took, and so what others like it will."""

    def __init__(self, lines: Iterable[ManifestLine], spent: Mapping[str, float]) -> None:
        """`spent` has the core-seconds of done cells, by id."""
        self._alike: dict[str, list[float]] = {}
        for line in lines:
            if line.id in spent:
                for key in (_configuration(line), line.array):
                    self._alike.setdefault(key, []).append(spent[line.id])

    def predict(self, lines: Iterable[ManifestLine]) -> PredictedCost:
        """The mean of a cell's own configuration, else that of its array."""
        known: list[float] = []
        unknown = 0
        for line in lines:
            alike = self._alike.get(_configuration(line)) or self._alike.get(line.array)
            if alike:
                known.append(statistics.fmean(alike))
            else:
                unknown += 1
        return PredictedCost(sum(known), len(known), unknown)


def run_cost(paths: RunPaths, patience_s: float = 0.0) -> RunCost:
    """Asks Slurm's accounting for all jobs of the run: once, or for so long until it has them all.

    Slurm's accounting hears of what has ended some seconds later.
    The answer is kept in the run folder, where this user may write there, and is taken where
    Slurm's accounting gives none. Raises InputError for a damaged run.
    """
    lines = read_manifest_lines(paths.manifest)
    attempts = list_attempts(paths)
    results = _results(lines, attempts)
    jobs = _Jobs(lines, read_submissions(paths), attempts)
    held_by = _held_by_ranks(paths)
    tasks = _ask_patiently(jobs, patience_s)
    accounted = _accounted(tasks, whole_nodes=_has_whole_nodes(paths)) if tasks else None
    if accounted is not None:
        with contextlib.suppress(OSError):
            write_accounted(paths, accounted)
    held: dict[str, float] = {}
    for task in tasks or ():
        held[task.task] = held.get(task.task, 0.0) + task.core_s
    spent = {
        line.id: cost
        for line in lines
        if _is_done(some := results[line.id])
        and (cost := jobs.spent(line, held) or _of_results(some, held_by.get(line.id, 1.0)))
    }
    rest = [line for line in lines if not _is_done(results[line.id])]
    return RunCost(
        _recorded(each for some in results.values() for each in some),
        accounted or read_accounted(paths),
        CellCosts(lines, spent).predict(rest),
    )


def predict_cells(paths: RunPaths, cells: Collection[Cell]) -> PredictedCost:
    """What other cells will take, by those of this run that are done, as their results tell."""
    attempts = list_attempts(paths)
    if not attempts:
        return PredictedCost(0.0, 0, len(cells))
    lines = read_manifest_lines(paths.manifest)
    results = _results(lines, attempts)
    held_by = _held_by_ranks(paths)
    spent = {
        name: cost
        for name, some in results.items()
        if _is_done(some) and (cost := _of_results(some, held_by.get(name, 1.0)))
    }
    others = [parse_manifest_line(json.loads(cell.to_line()), cell.id) for cell in cells]
    return CellCosts(lines, spent).predict(others)


def _ask_patiently(jobs: _Jobs, patience_s: float) -> list[AccountedTask] | None:
    """What sacct says, once it has the end of every task that made an attempt; or in the end."""
    deadline = time.monotonic() + patience_s
    while True:
        tasks = ask_sacct(jobs.arrays)
        known = {task.task for task in tasks or ()}
        over = jobs.started <= known and not any(task.running for task in tasks or ())
        if over or time.monotonic() > deadline:
            return tasks
        time.sleep(_BETWEEN_S)


class _Jobs:
    """Which array task is which cell's."""

    def __init__(
        self,
        lines: list[ManifestLine],
        submissions: list[SubmissionRecord],
        attempts: Mapping[str, list[AttemptPaths]],
    ) -> None:
        slurm = [one for one in submissions if one.cluster == "slurm"]
        self.arrays: dict[str, str | None] = {}
        self._tasks: dict[tuple[str, int], set[str]] = {}
        self.started: set[str] = set()
        """The tasks that made an attempt."""
        for line in lines:
            # Jobs submitted by hand are known by their attempts alone.
            processes = map(read_attempt_process, attempts.get(line.id, []))
            ran = {process.job for process in processes if process and process.job}
            self._tasks[line.array, line.index] = ran
            self.started |= ran
            for number in {job.partition("_")[0] for job in ran}:
                # A block's job runs cells of several arrays.
                same = self.arrays.setdefault(number, line.array) == line.array
                self.arrays[number] = line.array if same else None
        for one in slurm:
            self.arrays[one.job_id] = one.array
            for index in one.index_list():
                self._tasks.setdefault((one.array, index), set()).add(one.task(index))
        self._cells = Counter(task for tasks in self._tasks.values() for task in tasks)

    def spent(self, line: ManifestLine, held: Mapping[str, float]) -> float | None:
        """What the accounting has of a cell's tasks; None where other cells had them too."""
        mine = self._tasks[line.array, line.index]
        alone = all(self._cells[task] == 1 for task in mine)
        told = [held[task] for task in mine if task in held]
        return sum(told) if told and alone else None


def _held_by_ranks(paths: RunPaths) -> dict[str, float]:
    """Of each cell of a block how many times its ranks' CPUs the block holds meanwhile."""
    found: dict[str, float] = {}
    for table in read_blocks(paths).tables.values():
        most: dict[int, int] = {}
        for line in table:
            most[line.block] = max(line.ranks, most.get(line.block, 0))
        found |= {line.cell: most[line.block] / line.ranks for line in table}
    return found


def _results(
    lines: Iterable[ManifestLine], attempts: Mapping[str, list[AttemptPaths]]
) -> dict[str, list[Result | None]]:
    """By cell, of each of its attempts."""
    return {
        line.id: [read_if_whole(each.result) for each in attempts.get(line.id, [])]
        for line in lines
    }


def _is_done(results: Iterable[Result | None]) -> bool:
    return any(each is not None and each.status == "done" for each in results)


def _of_results(results: Iterable[Result | None], held_by_ranks: float) -> float | None:
    told = [cost for each in results if each and (cost := attempt_core_s(each)) is not None]
    return sum(told) * held_by_ranks if told else None


def _recorded(results: Iterable[Result | None]) -> RecordedCost:
    told = [attempt_core_s(each) if each else None for each in results]
    known = [cost for cost in told if cost is not None]
    return RecordedCost(sum(known), len(known), len(told) - len(known))


def _accounted(tasks: list[AccountedTask], *, whole_nodes: bool) -> AccountedCost:
    gathered = [task for task in tasks if task.cpu_s is not None]
    ended = [task for task in tasks if not task.running]
    energies = [task.energy_j for task in ended if task.energy_j is not None]
    # What some tasks took says nothing of all.
    measured = whole_nodes and bool(ended) and len(energies) == len(ended)
    return AccountedCost(
        at=utc_now(),
        tasks=len(tasks),
        running=len(tasks) - len(ended),
        core_s=sum(task.core_s for task in tasks),
        ended_core_s=sum(task.core_s for task in gathered),
        cpu_s=sum(task.cpu_s or 0.0 for task in gathered) if gathered else None,
        energy_j=sum(energies) if measured else None,
    )


def _has_whole_nodes(paths: RunPaths) -> bool:
    """Whether the run, and each submission to it, asked for nodes without other jobs."""
    sites = [one.site for one in read_submissions(paths) if one.cluster == "slurm"]
    sites.append((read_provenance(paths) or {}).get("site"))
    return all(isinstance(site, dict) and site.get("exclusive") is True for site in sites)


def _configuration(line: ManifestLine) -> str:
    """Equal for cells that are repeats of one another."""
    experiment: dict[str, Any] = dict(line.raw["experiment"])
    kept = {name: value for name, value in experiment.items() if name not in _REPEATED}
    return f"{line.array} {json.dumps(kept, sort_keys=True)}"
