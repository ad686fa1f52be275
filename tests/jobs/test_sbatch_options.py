"""Options of sbatch: which there are, which are the site's keys, which decide speed."""

from __future__ import annotations

import json

import pytest

from gnnhpc.core.errors import InputError
from jobs.cluster.arrays import Array, after_jobs, group_by_array, resources_for, take_turns
from jobs.cluster.launch import Launch
from jobs.cluster.sbatch_options import parse_help, parse_options
from jobs.cluster.site import Site
from jobs.spec.planning import plan

HELP = """\
Usage: sbatch [OPTIONS(0)...] script [args(0)...]
Parallel run options:
  -a, --array=indexes         job array index values
      --bb=<spec>             burst buffer specifications
      --export[=names]        specify environment variables to export
  -O, --overcommit            overcommit resources
      --exclusive[=user]      allocate nodes in exclusive mode when
                              cpu consumable resource is enabled
      --mem-bind=             Bind memory to locality domains (ldom)
                              --mem >= --mem-per-cpu if --mem is specified.
"""


def arrays(repeats: int) -> list[Array]:
    grid = {
        "models": "gat",
        "data": "synthetic-citation",
        "layouts": ["seq", "pp2"],
        "repeats": repeats,
    }
    return group_by_array(plan({"name": "sweep", "grids": [grid]}).cells)


def test_the_options_that_sbatch_lists() -> None:
    assert parse_help(HELP) >= {"array", "bb", "export", "overcommit", "exclusive", "mem-bind"}
    assert "array-indexes" not in parse_help(HELP)
    assert not parse_help("sbatch: fatal: Could not establish a configuration source")


def test_options_on_the_command_line_set_the_sites_keys_and_pass_on_the_others() -> None:
    given = ["partition=gpu", "cpus-per-task=4", "exclusive", "--time=30", "nice=5", "no-kill"]
    given.append("cpu-bind=cores")
    assert parse_options(given) == {
        "partition": "gpu",
        "cpus_per_task": 4,
        "exclusive": True,
        "time": "30",
        "cpu_bind": "cores",
        "slurm": {"nice": "5", "no-kill": True},
    }
    assert parse_options([]) == {}
    with pytest.raises(InputError, match=r"--slurm: found '=x'; allowed: NAME=VALUE"):
        parse_options(["=x"])


def test_what_may_decide_speed_is_recorded_and_nothing_else() -> None:
    site = Site(
        exclusive=True,
        hint="nomultithread",
        mem="4G",
        max_requeues=9,
        slurm={"mem-bind": "local", "mail-type": "END", "reservation": "x", "cpu-freq": "high"},
    )
    assert Launch("here", site).compared() == {
        "name": "here",
        "cpus_per_task": 1,
        "tasks_per_node": 1,
        "exclusive": True,
        "hint": "nomultithread",
        "cpu_freq": "high",
        "mem_bind": "local",
    }
    assert json.dumps(Launch().compared()) == (
        '{"name": "built-in", "cpus_per_task": 1, "tasks_per_node": 1}'
    )


def test_what_is_not_asked_for_is_left_to_slurm() -> None:
    layout = arrays(1)[0].layout
    asked = resources_for(layout, Site(slurm={"hold": False, "no-kill": True, "nice": 0}))
    assert asked.options() == {
        "nodes": 1,
        "ntasks-per-node": 1,
        "cpus-per-task": 1,
        "time": 60,
        "no-kill": True,
        "nice": 0,
    }


def test_jobs_wait_for_others_and_for_what_the_site_waits_for() -> None:
    layout = arrays(1)[0].layout
    plain = resources_for(layout, Site())
    assert after_jobs(plain, []) is plain
    assert after_jobs(plain, ["7", "9"]).options()["dependency"] == "afterany:7:9"
    own = resources_for(layout, Site(slurm={"dependency": "singleton"}))
    assert after_jobs(own, ["7"]).options()["dependency"] == "singleton,afterany:7"


@pytest.mark.parametrize(
    ("repeats", "limit", "turns"), [(3, None, False), (3, 5, True), (3, 6, False), (1, 1, True)]
)
def test_arrays_take_turns_where_together_they_would_be_too_many(
    repeats: int, limit: int | None, turns: bool
) -> None:
    counts = [len(array.cells) for array in arrays(repeats)]
    assert take_turns(counts, limit) is turns
    assert not take_turns(counts[:1], limit)
