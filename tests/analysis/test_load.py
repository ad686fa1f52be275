"""Loading a run folder: frames, the attempt that counts, damage, comparable cells."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.load.comparable import environment_key, environment_of
from analysis.load.run_data import RunData, load_run
from gnnhpc import kernels as kernel_package
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.schema import Check
from tests.tools.make_run import Story, make_run, rewrite_result, small_sweep

SMALL = {"train_steps": 12, "test_steps": 2}


def cells_of(root: Path) -> list[str]:
    return [cell.id for cell in read_manifest(RunPaths(root).manifest)]


def small(repeats: int = 1, **changes: object) -> list[Experiment]:
    return small_sweep(repeats, **SMALL, **changes)  # type: ignore[arg-type]


def test_frames_have_a_row_for_each_thing_that_was_recorded(images: RunData) -> None:
    cells = images.cells
    assert len(cells) == 24
    assert cells["valid"].all() and cells["counts"].all()
    steps = images.steps.groupby(["cell", "phase"], observed=True).size().unstack()
    assert (steps["train"] == 24).all() and (steps["test"] == 6).all()
    assert len(images.ranks) == (30 * cells["world_size"]).sum()
    profiled = images.layer_times.drop_duplicates(["cell", "step"])
    assert len(profiled) == 3 * len(cells)
    assert set(profiled["phase"]) == {"train"}
    assert not images.spans.empty
    assert set(images.stage_times["virtual_stage"]) == {0, 1}


def test_warm_up_and_profiled_steps_are_left_out_and_counted(images: RunData) -> None:
    dropped = images.steps["warmup"] | images.steps["profiled"]
    assert not (images.steps["kept"] & dropped).any()
    phases = images.phases
    recorded = np.where(phases["phase"] == "train", 24, 6)
    counted = phases[["n", "warmup_dropped", "profiled_dropped"]].sum(axis=1)
    assert (counted == recorded).all()
    assert (phases.loc[phases["phase"] == "train", "profiled_dropped"] == 3).all()


def first_cell(tmp_path: Path, *stories: Story) -> tuple[RunData, Any]:
    """A run whose first cell has these attempts, and that cell's row."""
    experiments = small()
    of_first = {experiments[0].id: list(stories)}
    run = load_run(make_run(tmp_path / "run", experiments, stories=of_first))
    return run, run.cells.iloc[0]


def test_the_newest_valid_attempt_counts(tmp_path: Path) -> None:
    bad = Check("engine-parity", "invalid", "outputs differ")
    stories = Story(), Story(audit=(bad,)), Story(status="failed", stop_at=3)
    _, row = first_cell(tmp_path, *stories)
    assert (row["attempt"], row["attempts"], row["valid"]) == (1, 3, True)


def test_a_resumed_attempt_uses_the_steps_before_its_checkpoint(tmp_path: Path) -> None:
    resumed = Story(resumed_from={"attempt": 1, "step": 6})
    run, row = first_cell(tmp_path, Story(status="interrupted", stop_at=8), resumed)
    steps = run.steps[(run.steps["cell"] == row["cell"]) & (run.steps["phase"] == "train")]
    assert list(steps["step"]) == list(range(12))


@pytest.mark.parametrize("verdict", ["invalid", "suspect", "inconclusive"])
def test_flags_and_validity_follow_the_checks(tmp_path: Path, verdict: str) -> None:
    check = Check("noisy", verdict, "because")  # type: ignore[arg-type]
    run, row = first_cell(tmp_path, Story(audit=(check,)))
    assert row["flags"] == ("inconclusive" if verdict == "inconclusive" else "noisy")
    assert row["valid"] == (verdict != "invalid")
    assert run.checks.iloc[0].to_list() == [row["cell"], "noisy", verdict, "because"]


DAMAGES: dict[str, Callable[[str], str | None]] = {
    "a line more": lambda text: text + '{"kind": "step", "phase": "train", "step": 99}\n',
    "another number": lambda text: text.replace('"wall_s": ', '"wall_s": 1', 1),
    "cut": lambda text: text[:-200],
    "no file": lambda _: None,
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_damaged_records_are_invalid_and_named_and_the_rest_is_loaded(
    tmp_path: Path, damage: str
) -> None:
    root = make_run(tmp_path / "run", small())
    first = cells_of(root)[0]
    path = RunPaths(root).cell(first).attempt(1).records(0)
    text = DAMAGES[damage](path.read_text())
    path.unlink()
    if text is not None:
        path.write_text(text)
    run = load_run(root)
    row = run.cells.set_index("cell").loc[first]
    assert (row["status"], row["valid"], row["flags"]) == ("damaged", False, "damaged")
    assert path.name in run.checks["detail"].iloc[0]
    assert first not in set(run.steps["cell"])
    assert run.cells["valid"].sum() == len(run.cells) - 1


def test_a_result_of_another_cell_is_damaged(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", small())
    first, second, *_ = cells_of(root)
    rewrite_result(
        RunPaths(root).cell(first).attempt(1).result, lambda raw: raw.update(cell=second)
    )
    details = load_run(root).checks.set_index("cell")["detail"]
    assert f"found {second}" in details[first]


def test_a_cell_that_still_runs_has_what_its_ranks_wrote(tmp_path: Path) -> None:
    run, row = first_cell(tmp_path, Story(finished=False, stop_at=5, cut_short=True))
    assert (row["status"], row["valid"]) == ("unfinished", False)
    assert (run.steps["cell"] == row["cell"]).sum() == 5


def test_cells_of_another_environment_are_left_out_or_separate(tmp_path: Path) -> None:
    experiments = [one for one in small(4) if one.model.name == "gat"]
    odd = experiments[-1].id
    stories = {odd: [Story(header={"threads": 9})]}
    root = make_run(tmp_path / "run", experiments, stories=stories)
    row = load_run(root).cells.set_index("cell").loc[odd]
    assert not row["counts"] and row["valid"] and row["flags"] == "not-comparable"
    assert row["not_comparable"] == "threads a rank 9, elsewhere 1"
    separate = load_run(root, separate=True)
    assert separate.cells["counts"].all()
    assert separate.settings[-1] == "environment"


def test_runs_concatenate_repeats_and_count_copies_once(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", small(), seed=1)
    gap = {small()[0].id: [Story(finished=False, stop_at=1)]}
    second = make_run(tmp_path / "b", small(), seed=2, stories=gap)
    copy = Path(shutil.copytree(first, tmp_path / "c"))
    both = load_run(first, copy, second)
    assert len(both.cells) == 2 * len(small()) - 1
    assert both.cells["cell"].is_unique
    assert set(both.cells["run_folder"]) == {"a", "b"}
    assert "run" not in both.settings
    assert set(both.steps["cell"].unique()) == set(both.cells["cell"])
    assert f"{len(small()) + 1} cells are copies" in both.notes[1]
    with pytest.raises(InputError, match="the same folder twice"):
        load_run(first, first)


def test_runs_of_other_environments_have_rows_of_their_own(tmp_path: Path) -> None:
    stories = {one.id: [Story(header={"threads": 9})] for one in small()}
    roots = [make_run(tmp_path / "a" / "run", small())]
    roots.append(make_run(tmp_path / "b" / "run", small(), stories=stories))
    both = load_run(*roots)
    assert both.settings[-1] == "run" and both.cells["run"].nunique() == 2
    assert any("threads a rank 9, elsewhere 1" in line for line in both.notes)


def test_a_kernel_that_only_some_layouts_need_keeps_cells_comparable() -> None:
    def key(**kernels: str) -> str:
        return environment_key(
            environment_of([{"implementation": "fused/c++", "kernels": kernels}])
        )

    sources = {path.stem for path in Path(kernel_package.__file__).parent.glob("cpp/*.cpp")}
    assert {"shared_memory_channel", "sample_neighbors"} <= sources
    alone = key(attention="c++ 12")
    assert key(attention="c++ 12", shared_memory_channel="c++ 11") == alone
    assert key(attention="c++ 12", sample_neighbors="c++ 11") != alone
