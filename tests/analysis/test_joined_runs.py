"""Several runs in one report: joined where alike, rows of their own where not, copies once."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.cli import main
from analysis.loading.joined_runs import load_runs
from analysis.summary.summary_table import summarise
from gnnhpc.data.settings import SyntheticCifar10, SyntheticCitation
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.gat import Gat
from gnnhpc.models.vig.model import Vig
from gnnhpc.records.run_paths import RunPaths
from tests.tools.make_run import Story, make_run

STEPS = {"train_steps": 10, "test_steps": 4}


def vig(repeats: int = 2) -> list[Experiment]:
    fields = {"model": Vig(), "data": SyntheticCifar10(image_size=8), "batch_size": 20, **STEPS}
    return _sweep(fields, repeats)


def gat(repeats: int = 2) -> list[Experiment]:
    fields = {"model": Gat(), "data": SyntheticCitation(), "chunks": "halo", **STEPS}
    return _sweep(fields, repeats)


def _sweep(fields: dict[str, Any], repeats: int) -> list[Experiment]:
    return [
        Experiment.model_validate(fields | {"layout": layout, "microbatches": m, "repeat": repeat})
        for repeat in range(repeats)
        for layout, m in (("seq", 1), ("pp2", 2))
    ]


def made(
    root: Path,
    experiments: Sequence[Experiment],
    seed: int = 0,
    left_out: Sequence[str] = (),
    **header: Any,
) -> Path:
    stories = {one.id: [Story(header=header)] for one in experiments}
    return make_run(root, experiments, stories=stories | dict.fromkeys(left_out, ()), seed=seed)


def summary_of(*roots: Path) -> pd.DataFrame:
    return summarise(load_runs(roots))


def test_one_sweep_on_two_clusters_is_rows_of_each(tmp_path: Path) -> None:
    """With the numbers that each run has alone, and its own baseline."""
    a = made(tmp_path / "a", vig(), seed=1, cpu_model="Old")
    b = made(tmp_path / "b", vig(), seed=2, cpu_model="New")
    both = summary_of(a, b)
    for name, root in (("a", a), ("b", b)):
        mine = both[both["run"] == name].reset_index(drop=True)
        alone = summary_of(root)
        pd.testing.assert_frame_equal(mine[alone.columns], alone)
    assert len(both) == 2 * 4
    (_, line, losses) = load_runs([a, b]).joining
    assert losses == "Losses are equal but for rounding in all 4 cells that a and b both measured."
    assert line == "Rows are apart by run, a from b: CPU model Old beside New."


def test_a_cell_whose_records_both_runs_lost_stays_in_both(tmp_path: Path) -> None:
    runs = [made(tmp_path / name, vig(), seed=seed) for seed, name in enumerate("ab")]
    for root in runs:
        RunPaths(root).cell(vig()[0].id).attempt(1).records(0).unlink()
    run = load_runs(runs)
    assert list(run.cells["status"]).count("damaged") == 2
    assert not any("copies" in line for line in run.joining)


def test_only_the_study_that_differs_is_apart(tmp_path: Path) -> None:
    header = {one.id: [Story(header={"code": "x"})] for one in vig()}
    a = make_run(tmp_path / "a", [*vig(), *gat()], stories=header)
    other = {one.id: [Story(header={"code": "y"})] for one in vig()}
    b = make_run(tmp_path / "b", [*vig(), *gat()], stories=other, seed=1)
    both = summary_of(a, b)
    assert set(both.loc[both["model"] == "vig", "run"]) == {"a", "b"}
    assert set(both.loc[both["model"] == "gat", "run"]) == {""}
    assert set(both.loc[both["model"] == "gat", "cells_used"]) == {4}


def test_a_sweep_that_went_on_in_a_second_folder_is_one_sweep(tmp_path: Path) -> None:
    experiments = [*vig(3), *gat(3)]
    ids = [one.id for one in experiments]
    first, second = ids[:5], ids[5:]
    a = made(tmp_path / "a", experiments, left_out=second)
    b = made(tmp_path / "b", experiments, left_out=first)
    run = load_runs([a, b])
    assert sorted(run.cells["cell"].astype(str)) == sorted(ids)
    assert run.cells["valid"].all()
    summary = summarise(run)
    assert "run" not in summary
    assert set(summary["cells_used"]) == set(summary["cells"]) == {3}
    assert run.joining[1:] == ("12 cells were not measured in one run and are in another.",)


def test_alike_runs_are_more_repeats_and_pairs_stay_within_a_folder(tmp_path: Path) -> None:
    a, b = (made(tmp_path / name, vig(3), seed=n) for n, name in enumerate(("a", "b")))
    summary = summary_of(a, b)
    assert set(summary["cells_used"]) == {6}
    piped = summary[(summary["layout"] == "pp2") & (summary["phase"] == "train")].iloc[0]
    assert piped["speedup_from"] == "6 pairs"
    # Of each folder by itself, and then over both: a pair of two folders would give another value.
    alone = [summary_of(root) for root in (a, b)]
    ratios = [one.loc[one["layout"] == "pp2", "speedup"].iloc[0] for one in alone]
    assert piped["speedup"] == pytest.approx((ratios[0] * ratios[1]) ** 0.5, rel=1e-9)
    assert len(set(load_runs([a, b]).cells["cell"])) == 12


def test_repeats_of_two_folders_are_no_pair(tmp_path: Path) -> None:
    """Where the first lacks a repeat's pipeline and the second its baseline."""
    experiments = vig(3)
    a = made(tmp_path / "a", experiments, left_out=[experiments[1].id])
    b = made(tmp_path / "b", experiments, seed=1, left_out=[experiments[0].id])
    summary = summary_of(a, b)
    piped = summary[(summary["layout"] == "pp2") & (summary["phase"] == "train")].iloc[0]
    assert (piped["cells_used"], piped["speedup_from"]) == (5, "4 pairs")


def test_the_order_of_runs_changes_no_number(tmp_path: Path) -> None:
    a = made(tmp_path / "a", [*vig(), *gat()], seed=1)
    b = made(tmp_path / "b", vig(), seed=2)
    one, other = summary_of(a, b), summary_of(b, a)
    keys = ["model", "layout", "microbatches", "phase"]
    columns = [*keys, "n", "mean_s", "median_s", "speedup", "bound", "cells_used"]
    pd.testing.assert_frame_equal(
        one[columns].sort_values(keys, ignore_index=True),
        other[columns].sort_values(keys, ignore_index=True),
    )


def test_runs_that_learnt_something_else_are_told(tmp_path: Path) -> None:
    a, b = (made(tmp_path / name, gat(), seed=n) for n, name in enumerate(("a", "b")))
    for path in b.rglob("rank-*.jsonl"):
        path.write_text(path.read_text().replace('"loss": 2.3', '"loss": 2.4'))
    (*_, line) = load_runs([a, b]).joining
    assert line.startswith("4 of 4 cells that a and b both measured learnt something else, such as")
    assert "training loss of step 0 is 2.4, there 2.3" in line


def test_a_copied_measurement_counts_once(tmp_path: Path) -> None:
    a = made(tmp_path / "a", vig())
    b = shutil.copytree(a, tmp_path / "b")
    run = load_runs([a, b])
    assert run.joining[1] == "4 measurements are copies of one in another run: counted once."
    pd.testing.assert_frame_equal(summarise(run), summary_of(a))


def test_an_invalid_cell_stays_visible_beside_a_valid_one(tmp_path: Path) -> None:
    experiments = vig()
    a = made(tmp_path / "a", experiments)
    path = next(iter((a / "cells").glob(f"{experiments[0].id}/attempt-1/rank-0000.jsonl")))
    path.write_text("damaged\n" + path.read_text())
    b = made(tmp_path / "b", experiments, seed=1)
    run = load_runs([a, b])
    assert int((~run.cells["valid"].astype(bool)).sum()) == 1
    assert "damaged" in set(run.checks["name"])
    assert set(summarise(run)["cells_used"]) == {3, 4}


@pytest.mark.slow
def test_the_report_says_how_runs_were_joined_and_writes_into_none_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = made(tmp_path / "x" / "run", vig(), code="one")
    b = made(tmp_path / "y" / "run", vig(), code="two")
    out = tmp_path / "out"
    assert main(["report", str(a), str(b), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "Rows are apart by run, x/run from y/run: code one beside two." in printed
    page = (out / "report.html").read_text()
    assert "Report of x/run + y/run" in page
    assert "Rows are apart by run" in page
    rows = pd.read_csv(out / "summary.csv")
    assert set(rows["run"]) == {"x/run", "y/run"}
    assert not (a / "report").exists()
    assert not (b / "report").exists()
    assert main(["report", str(a), str(b), "--only", "speedup", "--out", str(out / "only")]) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{a}", "{b}"], "--out"),
        (["{a}", "{a}", "--out", "{tmp}/out"], "the same folder twice"),
        (["{a}", "{tmp}/none", "--out", "{tmp}/out"], "no such folder"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    places = {"{tmp}": tmp_path}
    places |= {f"{{{name}}}": made(tmp_path / name, gat(1)) for name in ("a", "b")}
    for key, value in places.items():
        arguments = [argument.replace(key, str(value)) for argument in arguments]
    assert main(["report", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert says in captured.err
    assert not (tmp_path / "out").exists()
