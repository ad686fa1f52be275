"""Job arrays: which cells each task runs, and the resources that Slurm is asked for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from gnnhpc.experiment.manifest import Cell
from jobs.slurm.site_settings import Site, Value
from jobs.slurm.user_sbatch_options import STEP

_RANGE = re.compile(r"^(\d+)(?:-(\d+)(?::([1-9]\d*))?)?$")
PAIRED = "-paired"
"""The end of the name of an array whose tasks run all cells of a model and repeat."""


@dataclass(frozen=True)
class Task:
    """What one task of an array runs: one cell, or the cells of a paired block in their order."""

    number: int
    """Index of the cell, or number of the block."""
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Resources:
    """What Slurm is asked for, for one task of an array, besides what the site says."""

    site: Site
    nodes: int
    tasks_per_node: int
    time_min: int
    gres: str | None = None
    gpus_per_node: int | None = None

    @property
    def cores(self) -> int:
        return self.nodes * self.tasks_per_node * self.site.cpus_per_task

    def srun_options(self) -> dict[str, Value]:
        """Options of srun that decide how ranks are bound, in place of variables of a shell."""
        site = self.site
        found: dict[str, Value] = {"cpu-bind": site.binding} if site.binding else {}
        return found | {name: value for name, value in site.slurm.items() if name in STEP}

    def options(self) -> dict[str, Value]:
        """Options of sbatch with their values, which are True for an option without a value."""
        site = self.site
        named: dict[str, Value | None] = {
            "partition": site.partition,
            "account": site.account,
            "qos": site.qos,
            "constraint": site.constraint,
            "nodes": self.nodes,
            "ntasks-per-node": self.tasks_per_node,
            "cpus-per-task": site.cpus_per_task,
            "gres": self.gres,
            "gpus-per-node": self.gpus_per_node,
            "mem": site.mem,
            "time": self.time_min,
            "exclusive": site.exclusive,
        }
        everything = [*named.items(), *site.slurm.items()]
        return {
            name: value for name, value in everything if value is not None and value is not False
        }


@dataclass(frozen=True)
class JobArray:
    """One Slurm job array: tasks of one cell each, or of the cells of a paired block each."""

    name: str
    """The array's name, such as vig-pp2 or vig-paired."""
    tasks: tuple[Task, ...]
    resources: Resources

    @property
    def is_paired(self) -> bool:
        return self.name.endswith(PAIRED)

    @property
    def cells(self) -> list[Cell]:
        return [cell for task in self.tasks for cell in task.cells]

    @property
    def numbers(self) -> list[int]:
        """Indices of the cells, or numbers of the blocks."""
        return [task.number for task in self.tasks]

    def array_option(self, max_parallel: int | None) -> str:
        """The value of sbatch's --array: the tasks, and how many of them may run at once: 0-9%4."""
        tasks = format_indices(self.numbers)
        limited = max_parallel is not None and max_parallel < len(self.tasks)
        return f"{tasks}%{max_parallel}" if limited else tasks


def array_of_job(job_name: str) -> str:
    """The array's name in the name of a job: vig-pp2@quickstart."""
    return job_name.partition("@")[0]


def tasks_of_cells(cells: Iterable[Cell]) -> dict[str, list[Task]]:
    """A task for each cell, by array, in the order in which these first appear."""
    tasks: dict[str, list[Task]] = {}
    for cell in cells:
        tasks.setdefault(cell.array, []).append(Task(cell.index, (cell,)))
    return tasks


def job_arrays(tasks: Mapping[str, Iterable[Task]], site: Site) -> list[JobArray]:
    """The arrays with these tasks, by name. Raises InputError as `resources_for` does."""
    ordered = {
        name: tuple(sorted(some, key=lambda task: task.number)) for name, some in tasks.items()
    }
    return [JobArray(name, some, resources_for(some, site)) for name, some in ordered.items()]


def resources_for(tasks: Sequence[Task], site: Site) -> Resources:
    """What each of these tasks needs: the nodes of its largest cell, and time for all its cells.

    A cell has a task of Slurm's for each rank, and a GPU for each stage that a rank holds. Raises
    InputError if the tasks a node do not divide the ranks, or a node has too few GPUs.
    """
    experiments = [cell.experiment for task in tasks for cell in task.cells]
    gpu = any(experiment.device == "gpu" for experiment in experiments)
    layouts = dict.fromkeys((each.layout, each.process_layout) for each in experiments)
    needs = [_nodes_for(layout, processes, site, gpu=gpu) for layout, processes in layouts]
    nodes, tasks_per_node, _ = max(needs, key=lambda each: each[0] * each[1])
    gpus = max((each[2] for each in needs if each[2] is not None), default=None)
    return Resources(
        site=site,
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        time_min=site.time_min * max(len(task.cells) for task in tasks),
        gres=site.gres if gpu else None,
        gpus_per_node=gpus if gpu else None,
    )


def _nodes_for(
    layout: Layout, processes: Layout, site: Site, *, gpu: bool
) -> tuple[int, int, int | None]:
    """Nodes, tasks a node, and GPUs a node for one cell."""
    ranks = processes.world_size
    tasks = min(site.tasks_per_node, ranks)
    if ranks % tasks:
        divisors = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
        found = f"{tasks} for the {ranks} ranks of {layout}"
        raise InputError("site", "tasks_per_node", found, f"a divisor: {divisors}")
    stages = layout.world_size // ranks
    gpus = site.gpus_per_node if site.gpus_per_node or site.gres else tasks * stages
    if gpu and stages > 1 and gpus is not None and gpus < tasks * stages:
        allowed = f"at least {tasks * stages}, one for each stage of {layout} in one task"
        raise InputError("site", "gpus_per_node", gpus, allowed)
    return ranks // tasks, tasks, gpus


def parse_indices(text: str, where: str = "--index") -> list[int]:
    """`3,5-7` as [3, 5, 6, 7], `0-6:2` as [0, 2, 4, 6]; raises InputError for anything else."""
    indices: set[int] = set()
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise InputError(where, None, repr(text), "indices and ranges, such as 3,5-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InputError(where, None, repr(part), "a range from low to high")
        indices.update(range(first, last + 1, int(match[3] or 1)))
    return sorted(indices)


def format_indices(indices: Iterable[int]) -> str:
    """[3, 5, 6, 7] as `3,5-7`."""
    ordered = enumerate(sorted(set(indices)))
    grouped = itertools.groupby(ordered, key=lambda pair: pair[1] - pair[0])
    runs = [[index for _, index in group] for _, group in grouped]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
