"""Tables of the keys of sweeps and site files, made from the docstrings of their settings.

`gnnhpc schema sweep --table` prints them, and the reference pages have them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel


def sweep_keys() -> Iterator[str]:
    """Every key of a sweep, as blocks of Markdown."""
    from gnnhpc.experiment.experiment import Experiment
    from gnnhpc.experiment.link_prediction import Links
    from gnnhpc.experiment.sampling import Sampling
    from gnnhpc.optimizers.lr_schedules import LR_SCHEDULES
    from gnnhpc.optimizers.optimizer import OPTIMIZERS, OptimizerConfig
    from jobs.sweep.sweep import AXES, Grid, Sweep

    yield "# Sweeps"
    yield (
        "A sweep is a YAML file with `defaults` and `grids`. `gnnhpc schema sweep` prints a JSON "
        "Schema by which editors complete and check it."
    )
    yield "## A sweep"
    yield settings_table(Sweep)
    yield "## `defaults` and each grid"
    yield settings_table(Grid, {AXES.get(k, k): v for k, v in Experiment.model_fields.items()})
    yield "## `optimizer`"
    yield settings_table(OptimizerConfig)
    for name, optimizer in OPTIMIZERS.items():
        yield f"`{name}` has:"
        yield settings_table(optimizer, without=OptimizerConfig.model_fields)
    yield "## `optimizer.lr_schedule`"
    for name, schedule in LR_SCHEDULES.items():
        yield f"`{name}` has:"
        yield settings_table(schedule, without=("name",))
    yield "## `sampling`"
    yield settings_table(Sampling)
    yield "## `task`"
    yield settings_table(Links)


def settings_table(cls: Any, fields: Mapping[str, Any] = {}, without: Collection[str] = ()) -> str:
    """A table of a class's settings; the defaults of `fields` come before its own."""
    rows = []
    for key, field in cls.model_fields.items():
        if key not in without:
            first = fields.get(key, field)
            default = first.get_default(call_default_factory=True)
            shown = "none" if default is None else default
            if isinstance(default, BaseModel):
                shown = "its defaults"
            meaning = " ".join((field.description or "").split())
            if get_origin(first.annotation) is Literal:
                meaning += f" One of {', '.join(map(str, get_args(first.annotation)))}."
            rows.append((f"`{key}`", "required" if first.is_required() else f"`{shown}`", meaning))
    return markdown_table(("key", "default", "meaning"), rows) if rows else "No settings."


def markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table of cells in Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    escaped = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)
