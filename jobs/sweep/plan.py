"""A plan: every cell that a spec asks for, checked before anything is written."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import build_strictly, expand_user
from gnnhpc.data.data_files import data_root
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell, assign_indices
from gnnhpc.experiment.yaml_file import read_mapping, read_text
from jobs.sweep.expand import expand
from jobs.sweep.overrides import FLAG, apply_overrides
from jobs.sweep.sweep import Sweep

SHIPPED = Path(__file__).parents[1] / "sweeps"
"""Folder of the sweeps that a bare name finds: `submit quickstart`."""
_NAME_ALLOWED = (
    "a folder name of at most 120 bytes: no slash, %, backslash or line break, no . or - or space "
    "at its start"
)


@dataclass(frozen=True)
class Plan:
    """A sweep's cells in the order in which they should run, with the text they come from."""

    name: str
    source: str
    """Path of the spec, or `spec` for a mapping; error lines begin with it."""
    text: str
    """The spec as written."""
    overrides: tuple[str, ...]
    cells: tuple[Cell, ...]
    data_root: str | None

    @property
    def experiments(self) -> list[Experiment]:
        return [cell.experiment for cell in self.cells]


def missing_data(experiments: Iterable[Experiment], root: str | None) -> list[str]:
    """Names of data sets that jobs with this data root would not find."""
    folder, missing = Path(root) if root else None, dict[str, None]()
    for data in dict.fromkeys(each.data for each in experiments):
        try:
            data.check(folder)
        except InputError:
            missing[data.name] = None
    return list(missing)


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
    `overrides` are `key=value` as of --set; `root` is the data root and replaces the spec's.
    `check=False` skips the check that the files of the data exist. Raises InputError for any
    mistake, with the key it is in.
    """
    if isinstance(spec, Mapping):
        source, base, text = "spec", Path.cwd(), yaml.safe_dump(dict(spec), sort_keys=False)
    else:
        path = find_spec(Path(spec))
        source, base = str(path), path.resolve().parent
        text = read_text(path, "a sweep spec, such as jobs/sweeps/quickstart.yaml")
    raw = read_mapping(text, source, ", ".join(Sweep.model_fields))
    sweep = build_strictly(Sweep, raw, source)
    if overrides:
        # The spec itself is correct, so that what is wrong now is an override.
        sweep = build_strictly(Sweep, apply_overrides(raw, overrides), FLAG)
    experiments = expand(sweep, source, base)
    where = _data_root(root, sweep, base, source)
    if check:
        for data in dict.fromkeys(experiment.data for experiment in experiments):
            data.check(where)
    run = check_run_name(name, "--name") if name else check_run_name(sweep.name, f"{source}: name")
    absolute = str(where.resolve()) if where else None
    cells = tuple(assign_indices(experiments, absolute))
    return Plan(run, source, text, tuple(overrides), cells, absolute)


def find_spec(spec: Path) -> Path:
    """The spec itself, or the shipped sweep where `spec` is a bare name and no file.

    Raises InputError for a bare name that is neither.
    """
    if spec.is_file() or spec.suffix or len(spec.parts) != 1:
        return spec
    shipped = {path.stem: path for path in SHIPPED.glob("*.yaml")}
    if spec.name not in shipped:
        allowed = f"a sweep spec's path, or one of {', '.join(sorted(shipped))}"
        raise InputError(spec, None, "no such file, and no sweep of this name", allowed)
    return shipped[spec.name]


def check_run_name(name: str, where: str) -> str:
    """The name, unchanged; raises InputError if a folder, a job or a script cannot have it."""
    bad = any(c in "/%\\" or unicodedata.category(c).startswith("C") for c in name)
    if bad or not name or name[0] in ".- " or name != name.strip() or len(name.encode()) > 120:
        raise InputError(where, None, repr(name), _NAME_ALLOWED)
    return name


def _data_root(flag: str | Path | None, sweep: Sweep, base: Path, source: str) -> Path | None:
    """The flag's folder, the spec's, or what the environment names; a named one must exist."""
    if flag is not None:
        place, named = "--data-root", expand_user(flag, "--data-root")
    elif sweep.data_root is not None:
        place = f"{source}: data_root"
        named = base / expand_user(sweep.data_root, place)
    else:
        return data_root(None)
    if not named.is_dir():
        raise InputError(place, None, f"{named}, which is no folder", "the folder of the data sets")
    return named.absolute()
