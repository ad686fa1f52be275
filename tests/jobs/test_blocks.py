"""Blocks: which cells are in one, in which order, and what a job for them is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.block_table import read_block_table
from gnnhpc.records.run_paths import RunPaths
from jobs.cli import main
from jobs.cluster.blocks import BlockArray, arrays_of, draw_blocks, in_parts, needs_of
from jobs.cluster.launch import Launch
from jobs.cluster.site import Site
from jobs.folder.run_blocks import RunBlocks, add_blocks, read_blocks
from jobs.folder.run_folder import create_run_folder, extend_run_folder
from jobs.folder.submission_records import record_submission
from jobs.spec.planning import Plan, plan
from jobs.state.run_status import status

LAYOUTS = ["seq", "pp2", "dp2-pp2"]


def planned(**grid: Any) -> Plan:
    base = {"models": "gat", "data": "synthetic-citation", "layouts": LAYOUTS}
    base |= {"microbatches": 2, "seq_microbatches": 1}
    return plan({"name": "run", "grids": [base | grid]})


grids = st.fixed_dictionaries(
    {
        "layouts": st.lists(st.sampled_from(LAYOUTS), min_size=1, unique=True),
        "microbatches": st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True),
        "seeds": st.lists(st.integers(0, 50), min_size=1, max_size=3, unique=True),
        "repeats": st.integers(1, 4),
        "models": st.sampled_from(
            ["gat", [{"name": "gat", "heads": 2}, {"name": "gat", "heads": 4}]]
        ),
    }
)


def turn(cell: Cell) -> tuple[int, int]:
    return cell.experiment.seed, cell.experiment.repeat


@given(grids)
def test_every_cell_is_in_the_one_block_of_its_repeat(grid: dict[str, Any]) -> None:
    cells = planned(**grid).cells
    (array,) = draw_blocks(cells)
    assert array.name == "gat-paired"
    assert sorted(array.cells, key=lambda cell: cell.id) == sorted(cells, key=lambda c: c.id)
    assert array.indices == list(range(len(array.blocks)))
    turns = [{turn(cell) for cell in block.cells} for block in array.blocks]
    assert [len(one) for one in turns] == [1] * len(turns)
    assert sorted(next(iter(one)) for one in turns) == [next(iter(one)) for one in turns]
    assert len({turn(cell) for cell in cells}) == len(turns)


@given(grids, st.randoms())
def test_the_order_is_drawn_from_the_blocks_own_cells(grid: dict[str, Any], shuffled: Any) -> None:
    cells = list(planned(**grid).cells)
    drawn = draw_blocks(cells)
    shuffled.shuffle(cells)
    assert draw_blocks(cells) == drawn
    last = max(map(turn, cells))
    (fewer,) = draw_blocks([cell for cell in cells if turn(cell) == last])
    assert fewer.blocks[0].cells == drawn[0].blocks[-1].cells


@given(grids, st.integers(1, 3))
def test_new_cells_make_new_blocks_and_old_ones_stay(grid: dict[str, Any], more: int) -> None:
    before = planned(**grid).cells
    after = planned(**grid | {"repeats": grid["repeats"] + more}).cells
    new = [cell for cell in after if cell not in before]
    (old,) = draw_blocks(before)
    (added,) = draw_blocks(new, {"gat-paired": len(old.blocks)})
    assert added.indices == list(range(len(old.blocks), len(old.blocks) + len(added.blocks)))
    assert set(added.cells) == set(new)


@given(grids, st.integers(1, 5))
def test_parts_have_the_same_blocks_and_no_task_that_is_too_high(
    grid: dict[str, Any], limit: int
) -> None:
    whole = draw_blocks(planned(**grid).cells)
    parts = in_parts(whole, limit)
    assert [block for part in parts for block in part.blocks] == list(whole[0].blocks)
    assert all(0 <= task < limit for part in parts for task in part.tasks)
    assert [number for part in parts for number in part.indices] == whole[0].indices


def test_repeats_have_different_orders_and_no_layout_is_always_first() -> None:
    (array,) = draw_blocks(planned(repeats=60).cells)
    orders = [tuple(cell.array for cell in block.cells) for block in array.blocks]
    assert len(set(orders)) == 6
    firsts = [order[0] for order in orders]
    # Each is first 20 times of 60 on average; these cells' draw is always the same one.
    assert all(10 <= firsts.count(f"gat-{layout}") <= 30 for layout in LAYOUTS)


def test_models_have_arrays_of_blocks_of_their_own() -> None:
    vig = {"models": "vig", "data": "synthetic-cifar10", "layouts": ["seq", "pp4"]}
    vig |= {"batch_size": 8, "repeats": 2}
    gat = {"models": "gat", "data": "synthetic-citation", "layouts": ["seq", "pp2"]}
    arrays = draw_blocks(plan({"name": "run", "grids": [vig, gat]}).cells)
    assert [(one.name, one.indices) for one in arrays] == [
        ("vig-paired", [0, 1]),
        ("gat-paired", [0]),
    ]


def test_a_block_gets_the_largest_layouts_nodes_and_the_time_of_all_its_cells() -> None:
    (array,) = draw_blocks(planned(seq_microbatches=[1, 2], repeats=2).cells)
    site = Site(tasks_per_node=2, time="1:30:00", max_parallel=2)
    needs = needs_of(array, site)
    assert (needs.nodes, needs.tasks_per_node) == (2, 2)
    assert needs.time_min == 4 * 90
    assert needs.max_parallel == 2


def folder(tmp_path: Path, one: Plan, paired: bool = True) -> RunPaths:
    return create_run_folder(one, tmp_path / "run", Launch(live=True), paired=paired)


def test_a_run_has_scripts_of_arrays_and_of_blocks_and_a_table(tmp_path: Path) -> None:
    paths = folder(tmp_path, planned(repeats=2))
    assert sorted(path.name for path in paths.arrays.iterdir()) == [
        "gat-dp2-pp2.sbatch", "gat-paired.cells", "gat-paired.sbatch", "gat-pp2.sbatch",
        "gat-seq.sbatch",
    ]  # fmt: skip
    rows = paths.block_table("gat-paired").read_text().splitlines()
    assert rows[0].split("\t") == ["block", "array", "index", "ranks", "cell"]
    assert len(rows) == 7
    cells = read_manifest(paths.manifest)
    (array,) = read_blocks(paths).arrays_with(cells, cells)
    assert array == draw_blocks(cells)[0]
    script = paths.script("gat-paired").read_text()
    assert "#SBATCH --array=0-1\n" in script
    assert "#SBATCH --time=180\n" in script


def test_an_extended_run_keeps_its_blocks_and_gets_more(tmp_path: Path) -> None:
    launch = Launch(live=True)
    paths = folder(tmp_path, planned(repeats=2))
    before = paths.block_table("gat-paired").read_text()
    extend_run_folder(planned(repeats=3, layouts=[*LAYOUTS, "pp3"]), paths, launch, launch)
    after = paths.block_table("gat-paired").read_text()
    assert after.startswith(before)
    lines = read_block_table(paths.block_table("gat-paired"))
    # A layout that is added makes blocks of its own, with the repeats that are new.
    assert [(line.block, line.array) for line in lines[6:8]] == [(2, "gat-pp3"), (3, "gat-pp3")]
    assert {line.array for line in lines[8:]} == {"gat-pp3", *(f"gat-{one}" for one in LAYOUTS)}
    assert "#SBATCH --array=0-4\n" in paths.script("gat-paired").read_text()


def test_cells_stand_for_their_whole_blocks(tmp_path: Path) -> None:
    paths = folder(tmp_path, planned(repeats=3))
    cells = read_manifest(paths.manifest)
    wanted = [cell for cell in cells if (cell.array, cell.index) == ("gat-pp2", 1)]
    (array,) = read_blocks(paths).arrays_with(wanted, cells)
    assert array.indices == [1]
    assert {cell.array for cell in array.cells} == {f"gat-{layout}" for layout in LAYOUTS}
    with pytest.raises(InputError, match="found gat-pp2 1, which no block holds; allowed: a run"):
        RunBlocks().arrays_with(wanted, cells)


def test_parts_of_blocks_have_scripts_of_their_own(tmp_path: Path) -> None:
    launch = Launch("small", Site(max_array_size=3), live=True, array_limit=2)
    paths = create_run_folder(planned(repeats=5), tmp_path / "run", launch, paired=True)
    scripts = sorted(path.name for path in paths.arrays.glob("gat-paired*.sbatch"))
    assert scripts == ["gat-paired.2.sbatch", "gat-paired.4.sbatch", "gat-paired.sbatch"]
    text = paths.script("gat-paired.2").read_text()
    assert "#SBATCH --array=0-1\n" in text
    assert "index=$((2 + SLURM_ARRAY_TASK_ID))\n" in text


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("block\tarray", "number\tarray", ":1: found another head; allowed: block array index"),
        ("\t0\t", "\tzero\t", ":2: found"),
        ("gat-", "gat\t-", ":2: found"),
    ],
)
def test_a_damaged_table_is_named(old: str, new: str, told: str, tmp_path: Path) -> None:
    paths = folder(tmp_path, planned())
    table = paths.block_table("gat-paired")
    text = table.read_text()
    assert old in text
    table.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        status(paths.root)
    assert f"{table}{told}" in str(caught.value)


def test_a_manifest_without_a_cell_of_a_block_is_refused(tmp_path: Path) -> None:
    paths = folder(tmp_path, planned())
    record_submission(paths, "slurm", "gat-paired", [0], "17", Launch())
    assert len(status(paths.root).cells) == 3
    later = planned(repeats=2).cells
    add_blocks(paths, [cell for cell in later if cell.experiment.repeat == 1])
    with pytest.raises(InputError, match=r"no line of gat-\S+ 1, which gat-paired.cells names"):
        status(paths.root)


def test_a_run_without_blocks_is_as_before(tmp_path: Path) -> None:
    one = planned()
    paths = folder(tmp_path, one, paired=False)
    assert not list(paths.arrays.glob("*paired*"))
    assert read_blocks(paths) == RunBlocks()
    arrays = arrays_of(one.cells, 1000, paired=False)
    assert [array.name for array in arrays] == [f"gat-{layout}" for layout in LAYOUTS]


SPEC = """\
name: two
grids:
  - models: gat
    data: {name: synthetic-citation, nodes: 40, edges: 160, features: 8}
    layouts: [seq, pp2]
    microbatches: [1]
    repeats: 2
    train_steps: 2
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GNNHPC_SITE_FILE", raising=False)
    (tmp_path / "two.yaml").write_text(SPEC)
    return "two.yaml"


def test_a_dry_run_shows_blocks_and_their_order(
    spec: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["submit", spec, "--paired", "--dry-run"]) == 0
    out = capsys.readouterr().out
    (array,) = arrays_of(plan(spec).cells, 1000, paired=True)
    assert isinstance(array, BlockArray)
    for block in array.blocks:
        cells = ", ".join(f"{cell.array} {cell.index}" for cell in block.cells)
        assert f"gat-paired {block.number}: {cells}\n" in out
    assert "4 cells in 2 blocks; site" in out
    assert "2:00:00" in out
    assert "runs/two/arrays/gat-paired.sbatch\n#!/bin/bash\n" in out


@pytest.mark.slow
def test_here_cells_run_in_the_order_of_their_blocks(
    spec: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ("--cluster", "local", "--live")
    assert main(["submit", spec, "--paired", *flags, "--wait"]) == 0
    paths = RunPaths(tmp_path / "runs" / "two")
    cells = read_manifest(paths.manifest)
    (array,) = read_blocks(paths).arrays_with(cells, cells)
    results = [paths.cell(cell.id).attempt(1).result.stat().st_mtime_ns for cell in array.cells]
    assert results == sorted(results)
    assert len(results) == 4
    (tmp_path / "two.yaml").write_text(SPEC.replace("repeats: 2", "repeats: 3"))
    assert main(["submit", spec, "--extend", *flags, "--dry-run"]) == 0
    assert "gat-paired 2: " in capfd.readouterr().out


def test_blocks_are_not_begun_in_a_run_without(
    spec: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    create_run_folder(plan(spec), tmp_path / "runs" / "two", Launch(live=True))
    (tmp_path / "two.yaml").write_text(SPEC.replace("repeats: 2", "repeats: 3"))
    flags = ("--cluster", "local", "--live")
    assert main(["submit", spec, "--extend", "--paired", *flags]) == 2
    assert "--paired: found" in (told := capsys.readouterr().err)
    assert "which was submitted without it; allowed: --extend without it" in told
    assert main(["rerun", "runs/two", "--missing", "--paired", *flags]) == 2
    assert "which no block holds" in capsys.readouterr().err
