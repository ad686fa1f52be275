"""Options of sbatch that users may set, by a site, by --slurm or by variables of their shell."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gnnhpc.core.errors import InputError


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SITE_KEYS = {
    name: name.replace("-", "_")
    for name in _names(
        "account constraint cpu-bind cpus-per-task exclusive gpus-per-node gres mem partition qos "
        "signal time"
    )
} | {"ntasks-per-node": "tasks_per_node"}
"""Options with a key of their own in a site; cpu-bind is an option of srun."""
_NUMBERS = ("cpus_per_task", "gpus_per_node", "signal", "tasks_per_node")
OURS = _names(
    "array clusters comment error export export-file get-user-env gpus-per-task help input "
    "job-name no-requeue nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-socket open-mode "
    "output parsable quiet requeue tasks-per-node test-only uid gid usage verbose version wait wrap"
)
"""Options that follow from the cells, or that the scripts and `status` rely on."""
SPEED = _names(
    "contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu distribution extra-node-info "
    "gpu-bind gpu-freq gpus gpus-per-socket gres-flags hint mem-bind mincpus network overcommit "
    "oversubscribe power profile sockets-per-node spread-job switches thread-spec threads-per-core"
)
"""Options that may decide how fast a cell runs, so that results record them."""
STEP = _names(
    "cpu-freq distribution gpu-bind gpu-freq hint mem-bind network overcommit profile "
    "threads-per-core"
)
"""Options that srun has too, and that it would take from variables."""
_OPTION_OF = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_TIMELIMIT": "time",
    "SLURM_HINT": "hint",
}
"""Variables of sbatch that do not have the name of their option."""
_HARMLESS = ("account", "qos", "mem", "mem-per-cpu", "mem-per-gpu", "reservation", "wckey")
"""Options that a user's shell may set, since they do not decide speed."""
_OF_A_JOB = ("SLURM", "SRUN_", "PMI", "TORCHELASTIC")
_WHERE_SLURM_IS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")


def check_options(options: Iterable[str]) -> None:
    """Raises ValueError for an option that a site's key sets, or that users may not set."""
    for name in options:
        if name in SITE_KEYS:
            allowed = f"the site's key {SITE_KEYS[name]}"
        elif name == "gpus-per-task":
            # Slurm takes it beside GPUs a node only where a node has a task for each of them.
            allowed = 'gpu-bind: "per_task:1", which also shows each rank a GPU of its own'
        elif name in OURS:
            allowed = "other options of sbatch: this one follows from the cells, or status needs it"
        else:
            continue
        raise ValueError(f"slurm.{name}: found {name}; allowed: {allowed}")


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """Settings of a site from `NAME=VALUE`, or NAME alone, as --slurm takes them."""
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.removeprefix("--").partition("=")
        if not name:
            raise InputError("--slurm", None, repr(text), "NAME=VALUE, such as reservation=x")
        setting: object = value if sign else True
        if (key := SITE_KEYS.get(name)) is not None:
            settings[key] = int(value) if key in _NUMBERS and value.isdecimal() else setting
        else:
            options[name] = setting
    return settings | ({"slurm": options} if options else {})


def speed_options(options: Mapping[str, object]) -> dict[str, object]:
    """The options that may decide speed, under the names that records give them."""
    return {name.replace("-", "_"): options[name] for name in sorted(options) if name in SPEED}


def sbatch_environment(script_options: Collection[str]) -> dict[str, str]:
    """The variables that sbatch gets: none of a surrounding job, none that overrules the script.

    sbatch's variables, such as SBATCH_TIMELIMIT, overrule what a script says. Raises InputError for
    one that may decide how fast a cell runs where the script says nothing.
    """
    dropped = {*script_options, *OURS, "signal"} - {"clusters"}
    kept = {}
    for name, value in os.environ.items():
        if name.startswith("SBATCH_") or name in _OPTION_OF:
            plain = name.removeprefix("SBATCH_").lower().replace("_", "-")
            option = _OPTION_OF.get(name, plain)
            if option in dropped:
                continue
            if option not in _HARMLESS:
                raise InputError(
                    f"${name} would change the run without being recorded. "
                    f"Unset it or pass --slurm {option}=VALUE."
                )
        elif name.startswith(_OF_A_JOB) and name not in _WHERE_SLURM_IS:
            continue
        kept[name] = value
    return kept
