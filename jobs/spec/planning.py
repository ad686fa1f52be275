"""A plan: every cell that a spec asks for, checked before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gnnhpc.core.errors import InputError
from gnnhpc.core.user_paths import check_is_utf8, expand_user
from gnnhpc.data.roots import data_root
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell, assign_indices
from gnnhpc.experiment.stage_cut import cut
from gnnhpc.models.own_import import torch_import_s
from gnnhpc.models.own_model import OwnModel
from jobs.spec.overrides import apply_overrides
from jobs.spec.run_name import check_run_name
from jobs.spec.shipped_sweeps import find_spec
from jobs.spec.sweep import Sweep, expand
from jobs.spec.yaml_file import read_mapping, read_text

_KEYS = "name, description, data_root, defaults, grids"


@dataclass(frozen=True)
class Plan:
    """A sweep's cells in the order they should run, with the text they came from."""

    name: str
    source: str
    """The spec's path, or `spec` for a mapping; error lines begin with it."""
    text: str
    """The spec as written."""
    overrides: tuple[str, ...]
    cells: tuple[Cell, ...]
    data_root: str | None

    def notes(self) -> list[str]:
        """What a user should know of a plan that is right: what it costs to make, and where it
        measures nothing."""
        every = [cell.experiment for cell in self.cells]
        unmeasured = Counter(
            (each.warmup_steps, each.train_steps)
            for each in every
            if 0 < each.train_steps <= each.warmup_steps
        )
        warmed = [
            f"{count} of {len(every)} cells measure no training step: warmup_steps {warmup} of "
            f"train_steps {steps}"
            for (warmup, steps), count in unmeasured.items()
        ]
        models = {cell.experiment.model.name: cell.experiment.model for cell in self.cells}
        return warmed + [
            f"{model.source.name} imports torch at its top, {seconds:.1f} s of each submit on this "
            "login node; imported inside build() it is loaded on the nodes alone"
            for name, model in models.items()
            if isinstance(model, OwnModel) and (seconds := torch_import_s(name)) is not None
        ]


def plan(
    spec: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    name: str | None = None,
    root: str | Path | None = None,
    check: bool = True,
) -> Plan:
    """Read a spec (a path, or its content as a mapping) and expand it to cells.

    A bare name such as quickstart means the shipped sweep, unless there is such a file.
    `overrides` are `key=value` as of --set; `root` is the data root and beats the spec's.
    `check=False` skips only the check that the data's files are there. Raises InputError for any
    mistake, with the key it is in.
    """
    if isinstance(spec, Mapping):
        source, base, text = "spec", Path.cwd(), yaml.safe_dump(dict(spec), sort_keys=False)
    else:
        path = find_spec(Path(spec))
        check_is_utf8(path, "SPEC.yaml")
        source, base = str(path), path.resolve().parent
        text = read_text(path, "a sweep spec, such as jobs/sweeps/quickstart.yaml")
    raw = apply_overrides(read_mapping(text, source, _KEYS), overrides)
    sweep = Sweep.check(raw, source)
    experiments = expand(sweep, source, base)
    _check_stages(experiments, source)
    where = _data_root(root, sweep, base, source)
    if check:
        _check_files(experiments, where)
    run = check_run_name(name, "--name") if name else check_run_name(sweep.name, f"{source}: name")
    absolute = str(where.resolve()) if where else None
    cells = tuple(assign_indices(experiments, absolute))
    return Plan(run, source, text, tuple(overrides), cells, absolute)


def plan_of_new_cells(first: Plan, existing: Sequence[Cell]) -> Plan:
    """The plan of the cells that a run does not have yet; indices follow the run's last."""
    new = assign_indices((cell.experiment for cell in first.cells), first.data_root, existing)
    return replace(first, cells=tuple(new))


def _data_root(flag: str | Path | None, sweep: Sweep, base: Path, source: str) -> Path | None:
    """The flag's, the spec's, or what the environment names; a named one must exist."""
    if flag is not None:
        place, named = "--data-root", expand_user(flag, "--data-root")
    elif sweep.data_root is not None:
        place = f"{source}: data_root"
        named = base / expand_user(sweep.data_root, place)
    else:
        return data_root(None)
    if not named.is_dir():
        raise InputError(place, None, f"{named}, which is no folder", "the folder of the data sets")
    check_is_utf8(named, place)
    return named.absolute()


def _check_stages(experiments: Sequence[Experiment], source: str) -> None:
    """Raises InputError for more stages than layers, or a balance with another sum."""
    seen: set[tuple[object, ...]] = set()
    for experiment in experiments:
        stages, parts = experiment.layout.stages, experiment.virtual_stages
        key = (experiment.model, experiment.data, stages, parts, experiment.balance)
        if key not in seen:
            seen.add(key)
            cut(experiment, where=source)


def _check_files(experiments: Sequence[Experiment], root: Path | None) -> None:
    for config in dict.fromkeys(experiment.data for experiment in experiments):
        config.check(root)


def missing_data(plan: Plan) -> list[str]:
    """Names of the plan's data sets that are not where its jobs would look."""
    root = Path(plan.data_root) if plan.data_root else None
    missing: list[str] = []
    for config in dict.fromkeys(cell.experiment.data for cell in plan.cells):
        try:
            config.check(root)
        except InputError:
            missing.append(config.name)
    return list(dict.fromkeys(missing))


def no_new_cells_error(plan: Plan, run: Path) -> InputError:
    """The error for an extension that adds no cell."""
    return InputError(
        plan.source, "grids", f"no cell that {run} does not have", "a larger spec, or rerun"
    )
