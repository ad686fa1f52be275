"""Arrays with more cells than one job array may have tasks: how they are cut, and found again."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.core.index_list import parse_indices
from gnnhpc.experiment.manifest import read_manifest
from jobs.actions.submit import choose_launch
from jobs.cli import main
from jobs.cluster.array_limit import ClusterLimits, array_limit, check_job_count, parse_config
from jobs.cluster.array_script import render_script
from jobs.cluster.arrays import (
    array_range,
    group_by_array,
    parse_part_label,
    part_label,
    resources_for,
)
from jobs.cluster.launch import Launch
from jobs.cluster.site import Site
from jobs.folder.run_folder import create_run_folder
from jobs.folder.submission_records import SubmissionRecord
from jobs.spec.planning import plan

GRID = {"models": "gat", "data": "synthetic-citation", "layouts": ["seq", "pp2"]}
SPEC = """\
name: many
grids:
  - models: [gat]
    data: [{name: synthetic-citation, nodes: 40, edges: 160}]
    layouts: [seq, pp2]
    repeats: 7
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, with a cluster of arrays of four tasks, and no other site file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GNNHPC_SITE_FILE", raising=False)
    (tmp_path / "site.yaml").write_text("sites: {small: {max_array_size: 5}}")
    (tmp_path / "many.yaml").write_text(SPEC)


def test_a_sweep_is_cut_so_that_every_task_id_fits() -> None:
    cells = plan({"name": "sweep", "grids": [GRID | {"repeats": 1200}]}).cells
    parts = group_by_array(cells, 1000)
    assert [(part.label, part.offset, array_range(part.tasks, None)) for part in parts] == [
        ("gat-seq", 0, "0-999"),
        ("gat-seq.1000", 1000, "0-199"),
        ("gat-pp2", 0, "0-999"),
        ("gat-pp2.1000", 1000, "0-199"),
    ]
    assert [cell for part in parts for cell in part.cells] == sorted(
        cells, key=lambda cell: (cell.array != "gat-seq", cell.index)
    )


def test_cells_are_cut_where_all_of_their_array_would_be() -> None:
    cells = plan({"name": "sweep", "grids": [GRID | {"repeats": 1200}]}).cells
    some = [cell for cell in cells if cell.index in (7, 1003, 1004)]
    found = [(part.label, part.tasks) for part in group_by_array(some, 1000)]
    assert found[:2] == [("gat-seq", [7]), ("gat-seq.1000", [3, 4])]


@pytest.mark.parametrize("array", ["vig-pp2", "gat-seq", "mine.Net-dp2-pp2"])
@pytest.mark.parametrize("offset", [0, 4, 1000, 12000])
def test_a_parts_name_says_its_array_and_offset(array: str, offset: int) -> None:
    assert parse_part_label(part_label(array, offset)) == (array, offset)


@pytest.mark.parametrize(
    ("size", "own", "limit"),
    [
        (None, None, 1000),
        (1001, None, 1000),
        (20001, None, 1000),
        (501, None, 500),
        (1001, 301, 300),
        (501, 1001, 500),
        (1, None, 1),
    ],
)
def test_no_task_id_reaches_what_slurm_allows(
    size: int | None, own: int | None, limit: int
) -> None:
    assert array_limit(Site(max_array_size=own), ClusterLimits(size)) == limit
    assert size is None or limit - 1 < size


def test_what_scontrol_shows_is_read() -> None:
    text = "Configuration data\nMaxArraySize            = 1001\nMaxJobCount             = 10000\n"
    assert parse_config(text) == ClusterLimits(1001, 10000)
    assert parse_config("slurm_load_ctl_conf error: Unable to contact\n") == ClusterLimits()


def test_a_cluster_without_arrays_and_one_too_small_are_refused() -> None:
    with pytest.raises(InputError, match="MaxArraySize 0"):
        array_limit(Site(), ClusterLimits(0))
    with pytest.raises(InputError, match=r"found 60000 cells; allowed: at most 50000 jobs"):
        check_job_count(60_000, ClusterLimits(1001, 50_000))
    check_job_count(60_000, ClusterLimits())


def test_a_dry_run_and_the_site_check_say_how_arrays_are_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["submit", "many.yaml", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "14 cells in 4 arrays" in out
    told = "cells 4 to 6 of gat-pp2, as a job array has at most 4 tasks; task t is cell 4 + t"
    assert f"gat-pp2.4: {told}\n" in out
    assert "--- " + str(Path("runs/many/arrays/gat-pp2.4.sbatch").absolute()) in out
    assert main(["site", "check"]) == 0
    assert "  arrays of at most 4 cells, larger ones in parts" in capsys.readouterr().out


def test_a_dry_run_says_that_arrays_take_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.yaml").write_text("sites: {few: {max_parallel: 3}}")
    assert main(["submit", "many.yaml", "--dry-run", "--cluster", "local"]) == 0
    out = capsys.readouterr().out
    assert "at most 3 cells at once: one array after the other\n" in out
    assert out.count("#SBATCH --array=0-6%3\n") == 2


def test_a_run_folder_has_a_script_for_each_part(tmp_path: Path) -> None:
    launch = Launch("small", Site(max_array_size=5), array_limit=4)
    run = create_run_folder(plan("many.yaml", ["layouts=[seq]"]), tmp_path / "run", launch)
    assert json.loads(run.provenance.read_text())["array_limit"] == 4
    scripts = {path.name: path.read_text() for path in run.arrays.iterdir()}
    assert sorted(scripts) == ["gat-seq.4.sbatch", "gat-seq.sbatch"]
    seen = [
        offset + task
        for name, offset in (("gat-seq.sbatch", 0), ("gat-seq.4.sbatch", 4))
        for line in scripts[name].splitlines()
        if line.startswith("#SBATCH --array=")
        for task in parse_indices(line.partition("=")[2])
    ]
    assert seen == [cell.index for cell in read_manifest(run.manifest)] == list(range(7))
    # Larger arrays elsewhere: those of this run stay as they were made.
    again = choose_launch(run.root, "local", ("wide", Site()), extends=True, live=False)
    assert again.launch.array_limit == 4
    tight = choose_launch(
        run.root, "local", ("b", Site(max_array_size=4)), extends=True, live=False
    )
    assert tight.launch.array_limit == 3


def test_a_part_by_hand_runs_the_cell_that_its_task_means(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "arrays").mkdir(parents=True)
    (run / "manifest.jsonl").write_text("")
    cells = plan("many.yaml").cells
    part = group_by_array(cells, 4)[1]
    needs = resources_for(part.layout, Site())
    script = tmp_path / "spooled"
    script.write_text(render_script(part, run, needs, Launch(array_limit=4)))
    programs = tmp_path / "bin"
    programs.mkdir()
    srun = programs / "srun"
    srun.write_text('#!/bin/sh\necho "$*"\n')
    srun.chmod(0o755)
    task = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_JOB_ID": "17", "SLURM_JOB_ID": "19"}
    with Path(os.devnull).open("w") as nothing:
        subprocess.run(
            ["bash", str(script)],
            env=os.environ | task | {"PATH": f"{programs}:{os.environ['PATH']}"},
            stdout=nothing,
            cwd=tmp_path,
            check=True,
        )
    log = run / "logs" / "gat-seq-6-17.log"
    assert log.read_text().endswith("--array gat-seq --index 6\n")


def test_a_record_without_an_offset_is_of_an_array_that_was_not_cut() -> None:
    old = SubmissionRecord("slurm", "gat-seq", "0-9", "17", "2026-01-01T00:00:00+00:00", "me", "h")
    assert old.task(5) == "17_5"
