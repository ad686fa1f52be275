"""Site settings: partition, account, modules and the like, which differ between clusters.

default: cineca
sites:
  cineca:
    partition: g100_usr_prod
    account: my_account
    cpus_per_task: 4
    time: 02:00:00
    modules: [python/3.11]
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import Positive, Strict
from gnnhpc.core.user_paths import expand_user
from jobs.spec.spec_errors import as_mapping, check_keys, from_validation_error, short_value
from jobs.spec.yaml_file import read_mapping, read_text

SITE_FILE_VARIABLE = "GNNHPC_SITE_FILE"
_TIME = re.compile(r"^(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d{1,2}){0,2})$")
_FORMS = "minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"


def time_limit_minutes(text: str) -> int:
    """A Slurm time limit in whole minutes, rounded up; raises ValueError for other text."""
    match = _TIME.match(text.strip())
    if match is None:
        raise ValueError(f"found {text!r}; allowed: {_FORMS}")
    clock = [int(part) for part in match["clock"].split(":")]
    if match["days"] is not None:
        hours, mins, seconds = (*clock, 0, 0)[:3]
        total = ((int(match["days"]) * 24 + hours) * 60 + mins) * 60 + seconds
    elif len(clock) == 1:
        total = clock[0] * 60
    elif len(clock) == 2:
        total = clock[0] * 60 + clock[1]
    else:
        total = (clock[0] * 60 + clock[1]) * 60 + clock[2]
    if total <= 0:
        raise ValueError(f"found {text!r}; allowed: more than no time")
    return -(-total // 60)


def _checked_time_limit(text: str) -> str:
    time_limit_minutes(text)
    return text.strip()


def _one_line(text: str) -> str:
    if not text.strip() or any(ord(c) < 32 for c in text):
        raise ValueError(f"found {text!r}; allowed: one line of text")
    return text


Word = Annotated[str, Field(pattern=r"^[^\s'\"\\`$;&|<>]+$")]
Line = Annotated[str, AfterValidator(_one_line)]


class Site(Strict):
    """One cluster's settings; Slurm's defaults hold for what is left out."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str, Field(pattern=r"^[^\s'\"\\`$;<>]+$")] | None = None
    gres: Word | None = None
    """GPUs as --gres asks for them, a node, such as `gpu:a100:2`; for cells with device gpu."""
    gpus_per_node: Positive | None = None
    """GPUs as --gpus-per-node asks for them; for cells with device gpu."""
    cpus_per_task: Positive = 1
    """CPUs a rank; the worker uses as many threads."""
    tasks_per_node: Positive = 1
    """Ranks a node, at most the layout's; it must divide them."""
    mem: Annotated[str, Field(pattern=r"^\d+[KMGT]?B?$")] | None = None
    """Memory a node, such as 16G."""
    time: Annotated[str, AfterValidator(_checked_time_limit)] = "01:00:00"
    """Time limit of one cell."""
    modules: tuple[Word, ...] = ()
    """Environment modules to load, in order."""
    setup: tuple[Line, ...] = ()
    """Shell lines run before the ranks start."""
    activate: Line | None = None
    """Shell line that activates the Python environment; `python` is then what it activates."""
    python: Line | None = None
    """Interpreter; if None, the submitting one, or `python` with activate or container."""
    container: Line | None = None
    """Command put before the interpreter, such as `apptainer exec image.sif`."""
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:=^,-]+$")] | None = None
    """Network interface of gloo and nccl, such as ib0."""
    scratch: Line | None = None
    """Folder for temporary files on the nodes, set as TMPDIR."""
    max_parallel: Positive | None = None
    """Cells of one array that run at once."""
    signal: Annotated[int, Field(ge=5, le=3600)] = 90
    """Seconds before the time limit at which ranks are told to save and stop."""

    @property
    def time_min(self) -> int:
        return time_limit_minutes(self.time)

    def settings(self) -> dict[str, Any]:
        """What was set, as JSON and a site file have it."""
        return self.model_dump(mode="json", exclude_unset=True)


def load_site(file: str | Path | None = None, name: str | None = None) -> tuple[str, Site]:
    """The named site, or the file's default; without any site file, the built-in empty site.

    The file is the given one, else $GNNHPC_SITE_FILE, ./site.yaml, ~/.config/gnnhpc/site.yaml.
    Raises InputError for an unknown site and for every mistake in the file.
    """
    path = find_site_file(file)
    if path is None:
        if name is not None:
            allowed = f"a site of a site file: --site-file, ${SITE_FILE_VARIABLE} or ./site.yaml"
            raise InputError("--site", None, repr(name), allowed)
        return "built-in", Site()
    sites, default = read_site_file(path)
    chosen = name or default or (next(iter(sites)) if len(sites) == 1 else None)
    if chosen is None:
        raise InputError(path, "default", "nothing", f"--site or a default, of {', '.join(sites)}")
    if chosen not in sites:
        place = "--site" if name else f"{path}: default"
        raise InputError(place, None, repr(chosen), ", ".join(sorted(sites)))
    return chosen, sites[chosen]


def find_site_file(file: str | Path | None = None) -> Path | None:
    """The site file that is used, None if there is none."""
    named = file or os.environ.get(SITE_FILE_VARIABLE)
    if named:
        return expand_user(named, "--site-file")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    for path in (Path("site.yaml"), config / "gnnhpc" / "site.yaml"):
        if path.is_file():
            return path
    return None


def read_site_file(path: Path) -> tuple[dict[str, Site], str | None]:
    """All sites of a file, and the name of its default."""
    raw = read_mapping(read_text(path, "a site file"), path, "sites and default")
    check_keys(raw, {"sites", "default"}, path, None)
    entries = as_mapping(raw.get("sites"), path, "sites")
    if not entries:
        raise InputError(path, "sites", "no site", "at least one")
    default = raw.get("default")
    if default is not None and not isinstance(default, str):
        raise InputError(path, "default", short_value(default), ", ".join(sorted(entries)))
    sites = {name: parse_site(entry, path, f"sites.{name}") for name, entry in entries.items()}
    return sites, default


def parse_site(entry: object, path: Path, key: str) -> Site:
    """One site's settings; raises InputError for every mistake in them, with its key."""
    raw: dict[str, Any] = {} if entry is None else as_mapping(entry, path, key)
    check_keys(raw, Site.model_fields, path, key)
    if raw.get("gres") is not None and raw.get("gpus_per_node") is not None:
        raise InputError(path, f"{key}.gres", "both gres and gpus_per_node", "one of them")
    lists = {name: tuple(value) for name, value in raw.items() if isinstance(value, list)}
    # YAML reads a time limit of plain minutes as a number.
    time = raw.get("time")
    texts = {"time": str(time)} if isinstance(time, int) and not isinstance(time, bool) else {}
    try:
        return Site.model_validate(raw | lists | texts, strict=True)
    except ValidationError as error:
        raise from_validation_error(error, path, key) from None
