"""The batch scripts: their whole text, which tests/cluster runs, and the blocks of a paired run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs.slurm.batch_script import Launch, batch_script
from jobs.slurm.job_array import JobArray, job_arrays, tasks_of_cells
from jobs.slurm.paired_blocks import pair_cells
from jobs.slurm.site_settings import Site
from tests.jobs.conftest import small_plan

EXPECTED = Path(__file__).parent / "expected"
RUN = Path("/scratch/me/runs/run")
FULL = Site(
    partition="compute",
    account="proj42",
    qos="normal",
    constraint="a100|h100",
    cpus_per_task=8,
    tasks_per_node=2,
    mem="64G",
    exclusive=True,
    cpu_bind="cores",
    time="1-02:00:00",
    modules=("gcc/12", "python/3.11"),
    setup=("export A='b c'",),
    activate="source /venv/bin/activate",
    container="apptainer exec image.sif",
    interface="ib0",
    max_parallel=1,
    signal=120,
    max_requeues=2,
    slurm={"mail-type": "END,FAIL", "no-kill": True, "distribution": "cyclic"},
)


def array_of(site: Site) -> JobArray:
    arrays = job_arrays(tasks_of_cells(small_plan().cells), site)
    return next(array for array in arrays if array.name == "gat-pp2")


def paired(site: Site) -> JobArray:
    return job_arrays(pair_cells(small_plan().cells), site)[0]


def launch(site: Site) -> Launch:
    return Launch("test", site, python="/usr/bin/python3")


@pytest.mark.parametrize("name", ["full", "paired"])
def test_the_whole_script(name: str) -> None:
    """To accept a change, write the new text to the file that the message names."""
    array = paired(FULL) if name == "paired" else array_of(FULL)
    text = batch_script(array, RUN, launch(FULL))
    expected = EXPECTED / f"{name}.sbatch"
    assert text == expected.read_text(), f"{expected} differs"


GPUS = [
    ("gat-seq", {"nodes": 1, "ntasks-per-node": 1}),
    ("gat-pp2", {"nodes": 1, "ntasks-per-node": 2}),
    ("gat-dp2-pp2", {"nodes": 1, "ntasks-per-node": 4}),
    ("gat-dp4-pp2", {"nodes": 2, "ntasks-per-node": 4}),
    ("gat-paired", {"nodes": 2, "ntasks-per-node": 4}),
]


@pytest.mark.parametrize(("name", "tasks"), GPUS, ids=[name for name, _ in GPUS])
@pytest.mark.parametrize(
    "count", [{"gpus_per_node": 4}, {"gres": "gpu:a100:4"}], ids=["gpus_per_node", "gres"]
)
def test_every_array_asks_for_the_gpus_of_a_node_and_binds_one_to_each_rank(
    name: str, tasks: dict[str, int], count: dict[str, Any]
) -> None:
    """Slurm 22.05 takes these options together, and a step of fewer ranks in their job, too."""
    site = Site(tasks_per_node=4, slurm={"gpu-bind": "per_task:1"}, **count)
    layouts = [each.removeprefix("gat-") for each, _ in GPUS[:-1]]
    cells = small_plan(device="gpu", layouts=layouts, microbatches=2).cells
    arrays = job_arrays(tasks_of_cells(cells) | pair_cells(cells), site)
    needs = next(array.resources for array in arrays if array.name == name)
    asked = {key.replace("_", "-"): value for key, value in count.items()}
    common = {"cpus-per-task": 1, "time": needs.time_min, "gpu-bind": "per_task:1"}
    assert needs.options() == tasks | asked | common
    assert needs.srun_options() == {"cpu-bind": "cores", "gpu-bind": "per_task:1"}


def test_blocks_are_the_cells_of_a_seed_in_random_order() -> None:
    cells = small_plan(seeds=list(range(12))).cells
    (tasks,) = pair_cells(cells).values()
    assert [task.number for task in tasks] == list(range(12))
    orders = {tuple(cell.array for cell in task.cells) for task in tasks}
    assert orders == {("gat-seq", "gat-pp2"), ("gat-pp2", "gat-seq")}
    assert pair_cells(reversed(cells)) == pair_cells(cells)
    needs = paired(Site(time="30")).resources
    assert (needs.nodes, needs.tasks_per_node, needs.time_min) == (2, 1, 60)
