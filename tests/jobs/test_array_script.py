"""The batch scripts: their whole text, and what their shell does without Slurm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

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
    slurm={"mail-type": "END,FAIL", "reservation": "x", "no-kill": True},
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


def run_script(
    tmp_path: Path, site: Site, env: dict[str, str] | None = None
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run a copy of a script, as Slurm does, with a srun of ours; returns the moved run folder."""
    run, programs = tmp_path / "moved run", tmp_path / "bin"
    (run / "arrays").mkdir(parents=True)
    programs.mkdir()
    (run / "manifest.jsonl").write_text("{}\n")
    script, copy = run / "arrays" / "gat-pp2.sbatch", tmp_path / "slurm_script"
    script.write_text(batch_script(array_of(site), RUN, launch(site)))
    shutil.copy(script, copy)
    bodies = {
        "srun": f'echo "$*" >"{tmp_path}/srun"; env >"{tmp_path}/env"',
        "scontrol": f"echo '   Command={script}'",
    }
    for name, body in bodies.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    ids = {"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
    env = {"PATH": f"{programs}:/usr/bin:/bin", **ids, **(env or {})}
    with Path("/dev/null").open("w") as null:
        done = subprocess.run(
            ["bash", copy], env=env, cwd=tmp_path, stdout=null, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
    return done, run


LEAKED = {
    "SRUN_CPUS_PER_TASK": "7", "SLURM_CPU_BIND": "map_cpu:0", "SLURM_CPU_BIND_LIST": "0x1",
    "SLURM_DISTRIBUTION": "plane", "SLURM_CPU_FREQ_REQ": "low", "SLURM_EXPORT_ENV": "NONE",
    "SLURM_STEP_ID": "4", "SLURM_MEM_BIND": "local", "SLURM_MEM_PER_CPU": "5",
}  # fmt: skip


def test_a_task_runs_its_cell_with_the_options_of_its_script_alone(tmp_path: Path) -> None:
    site = Site(slurm={"distribution": "cyclic", "cpu-freq": "high"})
    done, run = run_script(tmp_path, site, LEAKED | {"SLURM_MEM_PER_NODE": "900"})
    assert done.returncode == 0, (run / "logs" / "gat-pp2-1-7.log").read_text()
    command = (tmp_path / "srun").read_text()
    for option in ("--export=ALL", "--cpu-bind=cores", "--distribution=cyclic", "--cpu-freq=high",
                   "--nodes=2 --ntasks=2 --ntasks-per-node=1",
                   f"--manifest {run}/manifest.jsonl --array gat-pp2 --index 1\n"):  # fmt: skip
        assert option in command
    variables = dict(
        line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line
    )
    assert not LEAKED.keys() & variables.keys()
    kept = (variables["PYTHONPATH"], variables["OMP_NUM_THREADS"], variables["SLURM_MEM_PER_NODE"])
    assert kept == (f"{run}/code", "1", "900")
    recorded = json.loads(variables["GNNHPC_SITE"])
    assert (recorded["distribution"], recorded["cpu_freq"]) == ("cyclic", "high")


def test_a_set_up_line_that_fails_ends_the_job_with_its_words(tmp_path: Path) -> None:
    done, run = run_script(tmp_path, Site(setup=("export A=1", "echo no disk; false")))
    assert done.returncode == 1
    last = (run / "logs" / "gat-pp2-1-7.log").read_text().splitlines()[-1]
    assert last == "error: set-up line 'echo no disk; false' failed with status 1: no disk "
    assert not (tmp_path / "srun").exists()


def test_blocks_are_the_cells_of_a_seed_in_random_order() -> None:
    cells = small_plan(seeds=list(range(12))).cells
    (tasks,) = pair_cells(cells).values()
    assert [task.number for task in tasks] == list(range(12))
    orders = {tuple(cell.array for cell in task.cells) for task in tasks}
    assert orders == {("gat-seq", "gat-pp2"), ("gat-pp2", "gat-seq")}
    assert pair_cells(reversed(cells)) == pair_cells(cells)
    needs = paired(Site(time="30")).resources
    assert (needs.nodes, needs.tasks_per_node, needs.time_min) == (2, 1, 60)
