"""What Slurm is asked for, and the script a user can submit by hand, compared whole.

GNNHPC_GOLDEN=write python -m pytest tests/jobs/test_array_script.py writes the golden files anew;
look at the difference before keeping it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout
from jobs.cluster.array_script import checkout, render_script, sbatch_value, setup_lines
from jobs.cluster.arrays import Array, array_range, group_by_array, resources_for
from jobs.cluster.blocks import needs_of
from jobs.cluster.launch import Launch
from jobs.cluster.site import Site
from jobs.spec.planning import plan

GOLDEN = Path(__file__).parents[1] / "golden"
HOME = Path("/opt/gnnhpc")
SITES = {
    "plain": Site(python="/opt/python"),
    "cluster": Site(
        partition="cpu",
        account="physics",
        qos="normal",
        constraint="skylake&ib",
        cpus_per_task=14,
        tasks_per_node=2,
        mem="64G",
        time="1-02:30:00",
        modules=("python/3.11", "gcc"),
        setup=("ulimit -c 0",),
        activate="source ~/venv/bin/activate",
        interface="ib0",
        scratch="/scratch/$USER",
        max_parallel=2,
        signal=120,
    ),
    "gpu": Site(gres="gpu:a100:2", tasks_per_node=2, container="apptainer exec --nv suite.sif"),
}


def array(layout: str, **keys: Any) -> Array:
    grid = {"models": "gat", "data": "synthetic-citation", "layouts": layout, "repeats": 3} | keys
    return group_by_array(plan({"name": "sweep", "grids": [grid]}).cells)[0]


def compare(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("GNNHPC_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("site", "layout", "run", "live"),
    [
        ("plain", "seq", "/runs/first", False),
        ("plain", "seq", "/runs/first", True),
        ("cluster", "dp2-pp2", '/runs/it\'s a "run" ü #1', False),
        ("gpu", "pp2", "/runs/first", False),
    ],
)
def test_scripts_are_as_they_were(site: str, layout: str, run: str, live: bool) -> None:
    one = array(layout, device="gpu" if site == "gpu" else "cpu")
    needs = resources_for(one.layout, SITES[site], gpu=one.gpu)
    launch = Launch(site, SITES[site], live=live)
    text = render_script(one, Path(run), needs, launch, home=HOME)
    compare(f"{site}-{layout}{'-live' if live else ''}.sbatch", text)


def test_resources_are_as_they_were() -> None:
    asked = {
        f"{site} {layout} {'gpu' if gpu else 'cpu'}": dataclasses.asdict(
            resources_for(Layout.parse(layout), SITES[site], gpu=gpu)
        )
        for site in SITES
        for layout in ("seq", "pp2", "pp4", "dp2-pp2")
        for gpu in (False, True)
    }
    compare("resources.json", json.dumps(asked, indent=1) + "\n")


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("run", ["/runs/a", "/runs/it's", '/r/"$(touch x)`y`', "/r/é \\ #"])
def test_scripts_are_shell_whatever_the_run_is_called(site: str, run: str, tmp_path: Path) -> None:
    one = array("pp2")
    text = render_script(
        one,
        Path(run),
        resources_for(one.layout, SITES[site]),
        Launch("here", SITES[site]),
        home=HOME,
    )
    checked = subprocess.run(["bash", "-n"], input=text.encode(), check=False, capture_output=True)
    assert checked.returncode == 0, checked.stderr
    line = next(line for line in text.splitlines() if line.startswith("written_for="))
    told = subprocess.run(
        ["bash", "-c", f'{line}\nprintf %s "$written_for"'],
        check=True, capture_output=True, cwd=tmp_path,
    )  # fmt: skip
    assert told.stdout.decode() == run
    assert list(tmp_path.iterdir()) == []


def test_a_script_without_slurm_says_what_it_is_for(tmp_path: Path) -> None:
    one = array("pp2")
    script = tmp_path / "gat-pp2.sbatch"
    script.write_text(
        render_script(one, tmp_path, resources_for(one.layout, Site()), Launch(), home=HOME)
    )
    bare = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    done = subprocess.run(
        ["bash", str(script)], env=bare, check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: gat-pp2.sbatch: found no $SLURM_ARRAY_TASK_ID; allowed:")


def test_a_script_finds_a_run_that_was_moved(tmp_path: Path) -> None:
    """Without scontrol, by the variable a user may give, or by where sbatch was called."""
    one = array("pp2")
    text = render_script(
        one, tmp_path / "gone", resources_for(one.layout, Site()), Launch(), home=HOME
    )
    moved = tmp_path / "moved to"
    (moved / "arrays").mkdir(parents=True)
    (moved / "manifest.jsonl").write_text("")
    script = tmp_path / "spooled"
    script.write_text(text.partition("# Signals are")[0] + '\necho "found $run"\n')
    # A node with neither scontrol nor squeue.
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("sed", "head", "mkdir", "timeout"):
        (programs / program).symlink_to(str(shutil.which(program)))
    node = {"PATH": str(programs), "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "1"}

    def run_script(**variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(shutil.which("bash")), str(script)],
            env=node | {"SLURM_JOB_ID": "1"} | variables,
            cwd=tmp_path, check=False, capture_output=True, text=True,
        )  # fmt: skip

    assert run_script(GNNHPC_RUN=str(moved)).stdout == f"found {moved}\n"
    assert run_script(SLURM_SUBMIT_DIR=str(moved / "arrays")).stdout == f"found {moved}\n"
    lost = run_script()
    assert lost.returncode == 2
    assert lost.stderr.startswith("error: gat-pp2.sbatch: found no manifest.jsonl at")


def test_cells_go_to_one_array_a_model_and_layout() -> None:
    grids = [
        {"models": "gat", "data": "synthetic-citation", "layouts": ["seq", "pp2"], "seeds": [0, 1]},
        {"models": {"name": "gat", "heads": 2}, "data": "synthetic-citation", "layouts": "seq"},
    ]
    arrays = group_by_array(plan({"name": "sweep", "grids": grids}).cells)
    assert [(a.name, a.indices) for a in arrays] == [("gat-seq", [0, 1, 2]), ("gat-pp2", [0, 1])]


def test_a_throttle_larger_than_the_array_is_left_out() -> None:
    assert array_range([0, 1, 2, 5], 2) == "0-2,5%2"
    assert array_range([0, 1, 2, 5], 4) == "0-2,5"
    assert array_range([3], None) == "3"


@pytest.mark.parametrize(
    ("layout", "tasks", "nodes"),
    [("seq", 4, 1), ("pp2", 4, 1), ("pp4", 2, 2), ("dp3-pp2", 3, 2), ("dp3-pp2", 1, 6)],
)
def test_ranks_are_spread_over_nodes(layout: str, tasks: int, nodes: int) -> None:
    asked = resources_for(Layout.parse(layout), Site(tasks_per_node=tasks))
    assert asked.nodes == nodes
    assert asked.tasks == Layout.parse(layout).world_size


def test_tasks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="1, 2, 3, 6"):
        resources_for(Layout.parse("pp6"), Site(tasks_per_node=4))


def test_torchgpipes_stages_are_one_task_with_a_gpu_each() -> None:
    """And on CPUs one task with the CPUs of one process, as its stages share a worker there."""
    site = Site(cpus_per_task=3, tasks_per_node=2)
    for device, layout, tasks, gpus in (
        ("cpu", "pp4", 1, None),
        ("gpu", "pp4", 1, 4),
        ("gpu", "dp2-pp2", 2, 4),
    ):
        one = array(layout, device=device, engine="torchgpipe", microbatches=2)
        needs = needs_of(one, site)
        assert one.name == f"gat-{layout}-torchgpipe"
        assert (needs.tasks, needs.cpus_per_task, needs.gpus_per_node) == (tasks, 3, gpus)
        text = render_script(one, Path("/runs/first"), needs, Launch("here", site), home=HOME)
        assert f"#SBATCH --ntasks-per-node={tasks}\n" in text
        assert ("#SBATCH --gpus-per-node=4\n" in text) == (gpus == 4)
        assert f"in layout {layout} ({tasks} rank" in text


def test_a_node_with_fewer_gpus_than_a_tasks_stages_is_refused() -> None:
    one = array("pp4", device="gpu", engine="torchgpipe", microbatches=2)
    with pytest.raises(InputError, match=r"site: gpus_per_node: found 2; allowed: at least 4, one"):
        needs_of(one, Site(gpus_per_node=2))


def test_gpus_are_asked_for_where_cells_use_them() -> None:
    layout = Layout.parse("pp4")
    assert resources_for(layout, Site(tasks_per_node=2), gpu=True).gpus_per_node == 2
    assert resources_for(layout, Site(gpus_per_node=8), gpu=True).gpus_per_node == 8
    assert resources_for(layout, Site(gres="gpu:1"), gpu=True).gpus_per_node is None
    assert resources_for(layout, Site(gres="gpu:1"), gpu=False).gres is None


def test_the_interpreter_is_the_sites() -> None:
    assert interpreter_of(Site(activate="conda activate x")) == "python"
    assert interpreter_of(Site(container="apptainer exec a.sif")) == "apptainer exec a.sif python"
    assert interpreter_of(Site(python="/a b/python")) == "/a b/python"
    assert Path(shlex.split(interpreter_of(Site()))[0]).exists()


def interpreter_of(site: Site) -> str:
    return Launch("here", site).interpreter()


def test_an_installed_package_needs_no_search_path() -> None:
    needs = resources_for(Layout(), Site())
    lines = setup_lines(
        Launch(), needs, checkout(Path("/env/lib/python3.11/site-packages")), "gat-seq"
    )
    assert not any("PYTHONPATH" in line for line in lines)


def test_header_values_are_one_word_for_sbatch() -> None:
    assert sbatch_value("plain") == "plain"
    assert sbatch_value("a b") == "'a b'"
    assert sbatch_value("a\\b") == "'a\\\\b'"
