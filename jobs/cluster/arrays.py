"""Groups cells into job arrays, and computes the resources to ask Slurm for: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.core.errors import InputError
from gnnhpc.core.index_list import format_indices
from gnnhpc.core.layout import Layout
from gnnhpc.spec.manifest import Cell
from jobs.cluster.site import Site


@dataclass(frozen=True)
class Array:
    """The cells of a sweep that share model and layout: one Slurm job array."""

    name: str
    layout: Layout
    cells: tuple[Cell, ...]

    @property
    def indices(self) -> list[int]:
        return [cell.index for cell in self.cells]

    @property
    def gpu(self) -> bool:
        return any(cell.experiment.device == "gpu" for cell in self.cells)

    def part(self, indices: Iterable[int]) -> Array:
        wanted = set(indices)
        return Array(self.name, self.layout, tuple(c for c in self.cells if c.index in wanted))


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

    @property
    def tasks(self) -> int:
        return self.nodes * self.tasks_per_node

    def options(self) -> dict[str, str | int]:
        """Options of sbatch with their values, without those that are None."""
        named: dict[str, str | int | None] = {
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
        }
        return {name: value for name, value in named.items() if value is not None}


def group_by_array(cells: Iterable[Cell]) -> list[Array]:
    """Cells by array, in the order in which the arrays first appear."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.array, []).append(cell)
    return [
        Array(name, members[0].experiment.layout, tuple(sorted(members, key=lambda c: c.index)))
        for name, members in found.items()
    ]


def resources_for(layout: Layout, site: Site, *, gpu: bool = False) -> Resources:
    """One task a rank, the site's tasks a node.

    Raises InputError if the tasks a node do not divide the layout's ranks.
    """
    ranks = layout.world_size
    tasks = min(site.tasks_per_node, ranks)
    if ranks % tasks:
        divisors = [str(n) for n in range(1, ranks + 1) if ranks % n == 0]
        raise InputError(
            "site", "tasks_per_node", f"{tasks} for the {ranks} ranks of {layout}",
            f"a divisor: {', '.join(divisors)}",
        )  # fmt: skip
    gpus = site.gpus_per_node if site.gpus_per_node or site.gres else tasks
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
    )


def array_range(indices: Sequence[int], max_parallel: int | None) -> str:
    """The value of --array: `0-9%4`, indices and how many may run at once."""
    throttle = f"%{max_parallel}" if max_parallel and max_parallel < len(indices) else ""
    return format_indices(indices) + throttle


def job_name(array: str, run: str) -> str:
    """The job's name in squeue; the array comes first, because squeue cuts long names."""
    return f"{array}@{run}"


def log_pattern(run: Path, array: str) -> Path:
    """The log of a cell's job; Slurm replaces %a by the index and %A by the job id."""
    return run / "logs" / f"{array}-%a-%A.log"
