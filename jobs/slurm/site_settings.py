"""Site settings: partition, account, modules and the like, which differ between clusters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gnnhpc.core.settings import Positive, Strict, Whole, build_strictly
from jobs.slurm.user_sbatch_options import check_options

_TIME = re.compile(r"^(?:(\d+)-)?(\d+)(?::(\d{1,2}))?(?::(\d{1,2}))?$")


def time_limit_minutes(text: str) -> int:
    """A Slurm time limit in whole minutes, rounded up; raises ValueError for other text."""
    match = _TIME.match(text.strip())
    if match is None:
        allowed = "minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"
        raise ValueError(f"found {text!r}; allowed: {allowed}")
    days, *clock = match.groups()
    numbers = [int(part) for part in clock if part is not None]
    units = (3600, 60, 1) if days is not None or len(numbers) == 3 else (60, 1)
    seconds = int(days or 0) * 86400
    seconds += sum(number * unit for number, unit in zip(numbers, units, strict=False))
    if seconds <= 0:
        raise ValueError(f"found {text!r}; allowed: more than no time")
    return -(-seconds // 60)


def _checked_time_limit(value: object) -> object:
    """The time limit as text; YAML reads plain minutes as a number."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        time_limit_minutes(value)
    return value


def _one_line(text: str) -> str:
    if not text.strip() or any(ord(c) < 32 for c in text):
        raise ValueError(f"found {text!r}; allowed: one line of text")
    return text


Word = Annotated[str, Field(pattern=r"""^[^\s'"\\`$;&|<>]+$""")]
Line = Annotated[str, AfterValidator(_one_line)]
TimeLimit = Annotated[
    str, BeforeValidator(_checked_time_limit, json_schema_input_type=Positive | str)
]
Value = bool | int | Line
"""The value of an option of sbatch; True for an option without a value."""


class Site(Strict):
    """One cluster's settings; Slurm's defaults hold for what is left out."""

    partition: Word | None = None
    """Partition of the jobs."""
    account: Word | None = None
    """Account that the jobs are charged to."""
    qos: Word | None = None
    """Quality of service."""
    constraint: Annotated[str, Field(pattern=r"""^[^\s'"\\`$;<>]+$""")] | None = None
    """Features that nodes must have, as --constraint takes them, such as `zen3&ib`."""
    gres: Word | None = None
    """GPUs a node, as --gres takes them, such as `gpu:a100:2`; for cells with device gpu."""
    gpus_per_node: Positive | None = None
    """GPUs a node, as --gpus-per-node takes them; for cells with device gpu."""
    cpus_per_task: Positive = 1
    """CPUs a rank; the worker uses as many threads."""
    tasks_per_node: Positive = 1
    """Ranks a node, at most the layout's; it must divide them."""
    mem: Annotated[str, Field(pattern=r"^\d+[KMGT]?B?$")] | None = None
    """Memory a node, such as 16G."""
    exclusive: bool | Literal["user", "mcs"] = False
    """Whether jobs get whole nodes; Slurm's default shares nodes with other jobs."""
    cpu_bind: Word | None = None
    """How srun binds ranks to CPUs: by cores unless `slurm` has a hint; none for no binding."""
    slurm: dict[Annotated[str, Field(pattern=r"^[a-z][a-z-]*$")], Value] = Field(
        default_factory=dict
    )
    """Any other option of sbatch, such as `{reservation: x, no-kill: true}`."""
    time: TimeLimit = "01:00:00"
    """Time limit of one cell: minutes, HH:MM:SS or D-HH:MM."""
    modules: tuple[Word, ...] = ()
    """Environment modules to load, in order, such as `[gcc/12, python/3.11]`."""
    setup: tuple[Line, ...] = ()
    """Shell lines run before the ranks start, such as `["export TMPDIR=/scratch/$USER"]`."""
    activate: Line | None = None
    """Shell line that activates the Python environment; `python` is then what it activates."""
    python: Line | None = None
    """Interpreter; none takes the submitting one, or `python` with activate or container."""
    container: Line | None = None
    """Command put before the interpreter, such as `apptainer exec image.sif`."""
    interface: Annotated[str, Field(pattern=r"^[\w.:-]+(,[\w.:-]+)*$")] | None = None
    """Network interface of gloo and nccl, such as ib0, or several with commas between them."""
    max_parallel: Positive | None = None
    """Cells of one submission that run at once."""
    signal: Annotated[int, Field(ge=5, le=3600)] = 90
    """Seconds before the time limit at which Slurm signals the ranks to save and stop."""
    max_requeues: Annotated[Whole, Field(ge=0)] = 5
    """How often Slurm requeues a cell that runs out of time or is preempted."""

    @model_validator(mode="after")
    def _fits(self) -> Site:
        """Refuses settings that contradict one another, or that sbatch does not have."""
        if self.gres is not None and self.gpus_per_node is not None:
            raise ValueError("gres: found both gres and gpus_per_node; allowed: one of them")
        if self.cpu_bind is not None and "hint" in self.slurm:
            raise ValueError("cpu_bind: found both cpu_bind and a hint; allowed: one of them")
        if self.time_min * 60 <= self.signal:
            found = f"{self.time}, and signal {self.signal} s before its end"
            raise ValueError(f"time: found {found}; allowed: more than {self.signal} seconds")
        check_options(self.slurm)
        return self

    @property
    def binding(self) -> str | None:
        """The value of srun's --cpu-bind; None where a hint decides."""
        return self.cpu_bind or (None if "hint" in self.slurm else "cores")

    @property
    def time_min(self) -> int:
        return time_limit_minutes(self.time)

    def settings(self) -> dict[str, Any]:
        """What was set, as JSON and a site file have it."""
        return self.model_dump(mode="json", exclude_unset=True)


def changed_site(site: Site, settings: Mapping[str, Any]) -> Site:
    """The site with these settings in place of its own; those of `slurm` one by one."""
    raw = site.settings() | dict(settings)
    if "slurm" in settings:
        raw["slurm"] = site.slurm | settings["slurm"]
    return build_strictly(Site, raw, "site", "settings") if settings else site
