"""Variables that sbatch reads in place of options: they outrank what a batch script says.

As sbatch's manual has them, under INPUT ENVIRONMENT VARIABLES. A cell would be measured with other
settings than its site says, or, with SBATCH_ARRAY_INX, not at all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator

from gnnhpc.core.errors import InputError
from jobs.cluster.sbatch_options import REFUSED, SITE_KEYS, SPEED

_PREFIX = "SBATCH_"
_NAMED_OTHERWISE = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_TIMELIMIT": "time",
    "SLURM_HINT": "hint",
}
_AS_THE_SCRIPT_SAYS = frozenset(("requeue", "verbose", "quiet"))
_OF_NO_CONCERN = frozenset(("account", "mem", "qos", "signal", "time"))
"""Keys of a site that decide no speed; what a site does not say, a user's shell may."""
_MEMORY = frozenset(("mem", "mem-per-cpu", "mem-per-gpu"))
"""Each excludes the others."""


def check_shell(given: Collection[str]) -> None:
    """Raises InputError for a variable that may decide speed where the site says nothing.

    `given` are the options that the batch script has.
    """
    decide = (SPEED | SITE_KEYS.keys()) - _OF_NO_CONCERN - set(given)
    for variable, option in _options_of_shell().items():
        if option == "clusters":
            allowed = "none: squeue is asked of this cluster alone"
            raise InputError("environment", variable, repr(os.environ[variable]), allowed)
        if option in decide:
            found = f"{os.environ[variable]!r}, which sbatch would take and no record would say"
            allowed = f"--slurm {option}=VALUE, or the site's own, and no such variable"
            raise InputError("environment", variable, found, allowed)


@contextlib.contextmanager
def without_overrides(given: Collection[str]) -> Iterator[None]:
    """Without the variables that stand for options that the batch script has, or that are ours."""
    outranked = set(given) | (REFUSED - _AS_THE_SCRIPT_SAYS) | {"signal"}
    if outranked & _MEMORY:
        outranked |= _MEMORY
    options = _options_of_shell().items()
    kept = {name: os.environ.pop(name) for name, option in options if option in outranked}
    try:
        yield
    finally:
        os.environ.update(kept)


def _options_of_shell() -> dict[str, str]:
    """The variables that are set, each with the name of its option."""
    return {
        name: _NAMED_OTHERWISE.get(name, name.removeprefix(_PREFIX).lower().replace("_", "-"))
        for name in sorted(os.environ)
        if name.startswith(_PREFIX) or name in _NAMED_OTHERWISE
    }
