"""Options of sbatch that a site passes on: which there are, which are ours, which decide speed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gnnhpc.core.ask_slurm import ask
from gnnhpc.core.errors import InputError
from jobs.spec.spec_errors import unknown_key_text


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SITE_KEYS = {
    "account": "account",
    "constraint": "constraint",
    "cpu-bind": "cpu_bind",
    "cpus-per-task": "cpus_per_task",
    "exclusive": "exclusive",
    "gpus-per-node": "gpus_per_node",
    "gres": "gres",
    "hint": "hint",
    "mem": "mem",
    "ntasks-per-node": "tasks_per_node",
    "partition": "partition",
    "qos": "qos",
    "signal": "signal",
    "tasks-per-node": "tasks_per_node",
    "time": "time",
}
"""Options that a key of the site stands for; cpu-bind is one of srun alone."""
_NUMBERS = ("cpus_per_task", "gpus_per_node", "signal", "tasks_per_node")
_HERE = frozenset(("cpus_per_task", "signal", "time"))
"""Of these keys those that cells of this machine have too."""
REFUSED = _names(
    "array clusters comment error export export-file get-user-env help input job-name no-requeue "
    "nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-socket open-mode output parsable quiet "
    "requeue test-only uid gid usage verbose version wait wrap"
)
"""Options that follow from the cells, or that scripts and status rely on."""
SPEED = _names(
    "contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu distribution "
    "extra-node-info gpu-bind gpu-freq gpus gpus-per-socket gpus-per-task gres-flags mem-bind "
    "mincpus network overcommit oversubscribe power profile "
    "sockets-per-node spread-job switches thread-spec threads-per-core"
)
"""Options that may decide how fast a cell runs."""
_KNOWN = _names(
    "account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment "
    "constraint container contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu "
    "cpus-per-task deadline delay-boot dependency distribution error exclude exclusive export "
    "export-file extra-node-info get-user-env gid gpu-bind gpu-freq gpus gpus-per-node "
    "gpus-per-socket gpus-per-task gres gres-flags hint hold ignore-pbs input job-name "
    "kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu "
    "mem-per-gpu mincpus network nice no-kill no-requeue nodefile nodelist nodes ntasks "
    "ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output overcommit "
    "oversubscribe parsable partition power prefer priority profile propagate qos quiet reboot "
    "requeue reservation signal sockets-per-node spread-job switches tasks-per-node test-only "
    "thread-spec threads-per-core time time-min tmp tres-per-task uid use-min-nodes verbose wait "
    "wait-all-nodes wckey wrap"
)
"""Options of sbatch up to Slurm 24.05, for machines without one."""


def sbatch_options() -> frozenset[str]:
    """The options that this machine's sbatch lists, else those that sbatch has elsewhere."""
    return parse_help(ask("sbatch", "--help") or "") or _KNOWN


def parse_help(text: str) -> frozenset[str]:
    """The long names in what `sbatch --help` prints."""
    return frozenset(re.findall(r"^ +(?:-\w, +)?--([a-z][a-z-]+)", text, re.MULTILINE))


def check_options(options: Iterable[str], where: object, key: str) -> None:
    """Raises InputError for an option that is ours, that a site's key stands for, or unknown."""
    names = list(options)
    for name in names:
        if name in SITE_KEYS:
            raise InputError(where, f"{key}.{name}", name, f"the site's key {SITE_KEYS[name]}")
        if name in REFUSED:
            allowed = "other options of sbatch: this one follows from the cells, or status needs it"
            raise InputError(where, f"{key}.{name}", name, allowed)
    if not names:
        return
    offered = sbatch_options() - SITE_KEYS.keys() - REFUSED
    for name in names:
        if name not in offered:
            found = unknown_key_text(name, offered).replace("key", "option of sbatch")
            raise InputError(where, f"{key}.{name}", found, "see sbatch --help")


def parse_options(texts: Iterable[str]) -> dict[str, object]:
    """Settings of a site from `NAME=VALUE`, or NAME alone, as --slurm takes them."""
    settings: dict[str, object] = {}
    options: dict[str, object] = {}
    for text in texts:
        name, sign, value = text.removeprefix("--").partition("=")
        if not name:
            raise InputError("--slurm", None, repr(text), "NAME=VALUE, such as reservation=x")
        given: object = value if sign else True
        if (key := SITE_KEYS.get(name)) is not None:
            settings[key] = int(value) if key in _NUMBERS and value.isdecimal() else given
        else:
            options[name] = given
    return settings | ({"slurm": options} if options else {})


def check_used_here(settings: Mapping[str, Any]) -> None:
    """Raises InputError for one of these settings of the command line that cells of this machine
    do not have: what only Slurm knows.
    """
    names = {key: name for name, key in SITE_KEYS.items()}
    options = {names[key]: value for key, value in settings.items() if key in names.keys() - _HERE}
    for name, value in (options | (settings.get("slurm") or {})).items():
        given = f"--{name}" if value is True else f"--{name} {value}"
        found = f"{given} for cells of this machine"
        raise InputError("command line", None, found, "none, or --cluster slurm")


def speed_options(options: Mapping[str, object]) -> dict[str, object]:
    """Those that decide speed, under the names that records give them."""
    return {name.replace("-", "_"): options[name] for name in sorted(options) if name in SPEED}
