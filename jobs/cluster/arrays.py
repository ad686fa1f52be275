"""Groups cells into job arrays, and computes the resources to ask Slurm for: pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.index_list import format_indices
from gnnhpc.core.layout import Layout
from gnnhpc.experiment.manifest import Cell
from jobs.cluster.site import Site

_PART = re.compile(r"^(.+)\.([1-9]\d*)$")


@dataclass(frozen=True)
class Array:
    """The cells of a sweep that share model, layout and the number of processes: one Slurm job
    array, or a part of them."""

    name: str
    layout: Layout
    processes: Layout
    cells: tuple[Cell, ...]
    offset: int = 0
    """Index of the cell that task 0 runs: Slurm's task ids end early, a sweep's indices do not."""

    @property
    def label(self) -> str:
        """The name of the part's script and, before the @, of its jobs."""
        return part_label(self.name, self.offset)

    @property
    def indices(self) -> list[int]:
        return [cell.index for cell in self.cells]

    @property
    def tasks(self) -> list[int]:
        """Slurm's task ids of the cells."""
        return [index - self.offset for index in self.indices]

    @property
    def gpu(self) -> bool:
        return any(cell.experiment.device == "gpu" for cell in self.cells)


@dataclass(frozen=True)
class Resources:
    """What Slurm is asked for, for one cell of an array; None is not asked for."""

    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    time_min: int
    signal_s: int
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    mem: str | None = None
    gres: str | None = None
    gpus_per_node: int | None = None
    max_parallel: int | None = None
    exclusive: bool | str = False
    hint: str | None = None
    cpu_bind: str | None = None
    slurm: tuple[tuple[str, str | int | bool], ...] = ()
    """Other options of sbatch."""

    @property
    def tasks(self) -> int:
        return self.nodes * self.tasks_per_node

    def options(self) -> dict[str, str | int | bool]:
        """Options of sbatch with their values, True where they have none; what is not asked for is
        left out."""
        named: dict[str, str | int | bool | None] = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "nodes": self.nodes,
            "ntasks-per-node": self.tasks_per_node,
            "cpus-per-task": self.cpus_per_task,
            "gres": self.gres,
            "gpus-per-node": self.gpus_per_node,
            "mem": self.mem,
            "time": self.time_min,
            "exclusive": self.exclusive,
            "hint": self.hint,
        }
        everything = [*named.items(), *self.slurm]
        return {
            name: value for name, value in everything if value is not None and value is not False
        }


def group_by_array(cells: Iterable[Cell], limit: int | None = None) -> list[Array]:
    """Cells by array, in the order in which the arrays first appear.

    With a limit of tasks an array's cells come in parts: the indices 0 to limit - 1, then those to
    2 limit - 1 and so on, whichever of them are there.
    """
    names: dict[str, dict[int, list[Cell]]] = {}
    for cell in cells:
        offset = cell.index // limit * limit if limit else 0
        names.setdefault(cell.array, {}).setdefault(offset, []).append(cell)
    return [
        Array(
            name,
            members[0].experiment.layout,
            members[0].experiment.process_layout,
            tuple(sorted(members, key=lambda cell: cell.index)),
            offset,
        )
        for name, parts in names.items()
        for offset, members in sorted(parts.items())
    ]


def part_label(array: str, offset: int) -> str:
    """`vig-pp2.1000` for the part of vig-pp2 whose task 0 is cell 1000; the first has no number."""
    return f"{array}.{offset}" if offset else array


def parse_part_label(label: str) -> tuple[str, int]:
    """Array and offset; an array's own name ends in its layout, never in a dot and a number."""
    match = _PART.match(label)
    return (match[1], int(match[2])) if match else (label, 0)


def resources_for(
    layout: Layout, site: Site, *, processes: Layout | None = None, gpu: bool = False
) -> Resources:
    """One task a rank, the site's tasks a node, and a GPU for each stage that a task holds.

    `processes` are how ranks are laid out, where not as `layout`. Raises InputError if the tasks a
    node do not divide the ranks, or a node's GPUs are too few for a task that holds several stages.
    """
    ranks = (processes or layout).world_size
    tasks = min(site.tasks_per_node, ranks)
    if ranks % tasks:
        divisors = [str(n) for n in range(1, ranks + 1) if ranks % n == 0]
        raise InputError(
            "site", "tasks_per_node", f"{tasks} for the {ranks} ranks of {layout}",
            f"a divisor: {', '.join(divisors)}",
        )  # fmt: skip
    stages = layout.world_size // ranks
    gpus = site.gpus_per_node if site.gpus_per_node or site.gres else tasks * stages
    if gpu and stages > 1 and gpus is not None and gpus < tasks * stages:
        allowed = f"at least {tasks * stages}, one for each stage of {layout} in one task"
        raise InputError("site", "gpus_per_node", gpus, allowed)
    return Resources(
        nodes=ranks // tasks,
        tasks_per_node=tasks,
        cpus_per_task=site.cpus_per_task,
        time_min=site.time_min,
        signal_s=site.signal,
        partition=site.partition,
        account=site.account,
        qos=site.qos,
        constraint=site.constraint,
        mem=site.mem,
        gres=site.gres if gpu else None,
        gpus_per_node=gpus if gpu else None,
        max_parallel=site.max_parallel,
        exclusive=site.exclusive,
        hint=site.hint,
        cpu_bind=site.cpu_bind,
        slurm=tuple(site.slurm.items()),
    )


def after_jobs(needs: Resources, jobs: Sequence[str]) -> Resources:
    """The same, to begin when these jobs have ended, and after what the site waits for."""
    if not jobs:
        return needs
    options = dict(needs.slurm)
    clauses = [str(options["dependency"])] if "dependency" in options else []
    options["dependency"] = ",".join([*clauses, f"afterany:{':'.join(jobs)}"])
    return replace(needs, slurm=tuple(options.items()))


def take_turns(sizes: Sequence[int], max_parallel: int | None) -> bool:
    """Whether each array, of so many tasks, must wait for the one before it.

    Slurm counts the running tasks of one array alone. With a share of the limit each, an array that
    has ended would leave its share unused, and there may be more arrays than shares.
    """
    return max_parallel is not None and len(sizes) > 1 and sum(sizes) > max_parallel


def array_range(tasks: Sequence[int], max_parallel: int | None) -> str:
    """The value of --array: `0-9%4`, task ids and how many may run at once."""
    throttle = f"%{max_parallel}" if max_parallel and max_parallel < len(tasks) else ""
    return format_indices(tasks) + throttle


def job_name(label: str, run: str) -> str:
    """The job's name in squeue; the array comes first, because squeue cuts long names."""
    return f"{label}@{run}"


def array_of_job(name: str) -> tuple[str, int]:
    """Array and offset that a job's name says."""
    return parse_part_label(name.partition("@")[0])


def log_pattern(run: Path, array: str) -> Path:
    """The log of a cell's job; Slurm replaces %a by the index and %A by the job id."""
    return run / "logs" / f"{array}-%a-%A.log"
