"""Two runs beside one another: what is called slower, what is not, and what is said besides."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from analysis.cli import main
from analysis.compare.compared_groups import BESIDE, over_others
from analysis.compare.layer_groups import group_seconds
from analysis.compare.ratios import (
    FASTER,
    NO_DIFFERENCE,
    SLOWER,
    TOLERATED,
    Compared,
    Pair,
    compare_pairs,
)
from analysis.compare.two_runs import Comparison, compare_runs
from analysis.loading.run import load
from analysis.stats.intervals import ONE_RUN, Interval, Sample
from gnnhpc.data.settings import SyntheticCifar10, SyntheticCitation
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.gat import Gat
from gnnhpc.models.vig.model import Vig
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Check
from tests.tools.make_run import Machine, Story, make_run

STEADY = Machine(noise=0.01, runs_differ=0.003)
SLOWED = Machine(noise=0.01, runs_differ=0.003, slower={"block1": 1.05})


def sweep(
    repeats: int, models: Sequence[str] = ("vig", "gat"), **changes: object
) -> list[Experiment]:
    steps = {"train_steps": 12, "test_steps": 4}
    vig = {
        "model": Vig(blocks=4),
        "data": SyntheticCifar10(image_size=8),
        "batch_size": 20,
        **steps,
    }
    gat = {"model": Gat(), "data": SyntheticCitation(), "chunks": "halo", **steps}
    kinds = {"vig": vig, "gat": gat}
    return [
        Experiment.model_validate(
            kinds[model] | {"layout": layout, "microbatches": m, "repeat": repeat} | changes
        )
        for repeat in range(repeats)
        for model in models
        for layout, m in (("seq", 1), ("pp2", 2))
    ]


def turns(experiments: Sequence[Experiment], minute: int) -> Mapping[str, Sequence[Story]]:
    """Each repeat starts in its own hour, at this minute of it."""
    return {
        one.id: [Story(started=f"2026-03-01T{one.repeat:02d}:{minute:02d}:00+00:00")]
        for one in experiments
    }


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "before", sweep(5), machine=STEADY, seed=1)


def test_a_layer_slower_by_a_twentieth_is_named_with_its_cells(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = make_run(tmp_path / "after", sweep(5), machine=SLOWED, seed=2)
    assert main(["compare", str(before), str(after)]) == 1
    lines = capsys.readouterr().out.splitlines()
    named = [line for line in lines if line.startswith("layer groups slower in ")]
    assert len(named) == 2
    for line, layout in zip(named, ("seq m1", "pp2 m2"), strict=True):
        assert re.match(
            rf"layer groups slower in vig synthetic-cifar10 {layout}: block1 1\.0\d\d \(", line
        )
        assert "block2" not in line
    assert lines[-1].startswith("SLOWER: layer groups of 2 configurations (8 compared")
    assert any(line.startswith("losses: equal but for rounding in all 20") for line in lines)


def test_copies_and_flags_are_told_of_cells_that_are_compared(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy of a measurement is no second one, and noise is not hidden by a verdict."""
    copied, *others = sweep(5)
    noisy = {one.id: [Story(audit=(Check("noisy", "suspect", "shared"),))] for one in others[:3]}
    after = make_run(tmp_path / "after", sweep(5), stories=noisy, machine=STEADY, seed=2)
    places = [RunPaths(root).cell(copied.id).root for root in (before, after)]
    shutil.rmtree(places[1])
    shutil.copytree(*places)
    assert main(["compare", str(before), str(after)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        f"one measurement in both, so no difference can show: 1 cells, such as {copied.id}" in lines
    )
    assert "flagged in B: noisy 3 of 20" in lines
    assert not any(line.startswith("flagged in A") for line in lines)


def test_averages_that_are_the_other_way_round_than_the_ratio_are_named() -> None:
    """One run of four that other work held up: its mean says slower, the geometric one faster."""
    steps = np.ones(6)
    usual = Sample([steps, steps, steps, 10.0 * steps])
    others = Sample([2.0 * steps, 2.0 * steps, 2.0 * steps, 2.0 * steps])
    (row,) = compare_pairs([Pair("one", "train", "step", usual, others)])
    assert row.ratio.value > 1.0 > others.mean.value / usual.mean.value
    assert row.turned_by_averages("mean")
    (same,) = compare_pairs([Pair("one", "train", "step", others, others)])
    assert not same.turned_by_averages("mean")


def test_a_slower_layer_is_named_beside_the_others_where_all_of_a_run_is_noisy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs differ by a tenth as a whole, so the seconds of one layer alone show nothing."""
    noisy = {"noise": 0.05, "runs_differ": 0.1}
    roots = [
        make_run(tmp_path / name, sweep(8, ("vig",)), machine=machine, seed=seed)
        for name, machine, seed in (
            ("before", Machine(**noisy), 1),
            ("slower", Machine(**noisy, slower={"block1": 1.06}), 4),
            ("faster", Machine(**noisy, slower={"block1": 0.5}), 4),
        )
    ]
    found = compare_runs(roots[0], roots[1])
    assert not [row for row in found.groups if row.seconds.verdict(0.02) == SLOWER]
    assert {row.what for row in found.slower_groups} == {"block1"}
    assert main(["compare", *map(str, roots[:2]), "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"block1 1\.0\d\d \(.*\) beside the other layers of the same steps", printed)
    assert BESIDE in (tmp_path / "out/compare_groups.csv").read_text()
    # The others take more beside one that became faster, and are not called slower for it.
    assert not compare_runs(roots[0], roots[2]).slower_groups


def test_a_group_beside_the_others_is_free_of_what_slows_all() -> None:
    one, other, pace = np.array([1.0, 1.0]), np.array([2.0, 1.0]), np.array([1.0, 3.0])
    seconds = {("c", "a"): one * pace, ("c", "b"): other * pace, ("alone", "a"): one}
    assert {key: list(value) for key, value in over_others(seconds).items()} == {
        ("c", "a"): [0.5, 1.0],
        ("c", "b"): [2.0, 1.0],
    }


def test_step_times_beyond_the_tolerance_are_named_and_written(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(noise=0.01, runs_differ=0.003, slower={"layer0": 1.3, "layer1": 1.3})
    after = make_run(tmp_path / "after", sweep(5), machine=machine, seed=2)
    out = tmp_path / "out"
    assert main(["compare", str(before), str(after), "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"gat synthetic-citation seq m1 +train .* slower$", printed, re.MULTILINE)
    assert re.search(r"vig .* seq m1 +train .* no difference shown$", printed, re.MULTILINE)
    assert "layer groups slower in gat synthetic-citation seq m1: all 2: layer0" in printed
    assert "SLOWER: 4 step times and layer groups of 2 configurations" in printed
    names = {path.name for path in out.iterdir()}
    assert {"compare.txt", "compare_steps.csv", "compare_groups.tex"} <= names
    # The other way round it is faster, which is no failure; nor is it beyond a wide tolerance.
    assert main(["compare", str(after), str(before)]) == 0
    assert " faster\n" in capsys.readouterr().out
    assert main(["compare", str(before), str(after), "--tolerance", "0.5"]) == 0
    assert TOLERATED in capsys.readouterr().out


def test_groups_are_of_the_steps_that_count(before: Path) -> None:
    run = load(before)
    kept = run.phases[run.phases["phase"] == "train"].set_index("cell")["n"]
    seconds = group_seconds(run)
    assert {cell for cell, _ in seconds} == set(kept.index.astype(str))
    assert all(len(values) == kept[cell] < 12 for (cell, _), values in seconds.items())
    cell = next(name for name in kept.index if "gat" in name and "pp2" in name)
    mine = run.groups[(run.groups["cell"] == cell) & (run.groups["phase"] == "train")]
    last = mine[mine["step"] == 11][["forward_s", "backward_s"]].to_numpy().sum()
    assert sum(seconds[cell, group][-1] for group in ("layer0", "layer1")) == pytest.approx(last)


@pytest.mark.slow
def test_equal_runs_are_called_slower_at_most_once_in_twenty_tries(tmp_path: Path) -> None:
    """Everything that is slower at all counts here: no tolerance."""
    experiments = sweep(3, ("vig",), train_steps=8, test_steps=4)
    machine = Machine(noise=0.02, runs_differ=0.03)
    slower = 0
    for number in range(20):
        roots = [
            make_run(tmp_path / f"{side}{number}", experiments, machine=machine, seed=seed)
            for side, seed in (("a", 100 + number), ("b", 200 + number))
        ]
        slower += main(["compare", *map(str, roots), "--tolerance", "0"])
    assert slower <= 1


def test_all_intervals_of_a_comparison_hold_together() -> None:
    """Twenty equal things, three runs a side: one by one they would mislead far more often."""
    rng = np.random.default_rng(0)
    together = alone = 0
    tries = 300
    for _ in range(tries):
        sides = np.exp(rng.normal(0.0, 0.02, (20, 2, 3, 1))) * np.ones(6)
        pairs = [Pair("x", "train", "step", Sample(a), Sample(b)) for a, b in sides]
        together += any(row.verdict(0.0) == SLOWER for row in compare_pairs(pairs))
        alone += any(pair.b.mean_over(pair.a).excludes(1.0) for pair in pairs)
    # At most one in forty, and three standard deviations of 300 tries beyond.
    assert together / tries <= 0.025 + 3 * (0.025 * 0.975 / tries) ** 0.5
    assert alone / tries > 0.3


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ((1.021, 1.06), SLOWER),
        ((1.001, 1.06), TOLERATED),
        ((0.99, 1.5), NO_DIFFERENCE),
        ((0.9, 0.99), FASTER),
    ],
)
def test_slower_needs_the_whole_interval_beyond_the_tolerance(
    bounds: tuple[float, float], verdict: str
) -> None:
    pair = Pair("x", "train", "step", Sample([]), Sample([]))
    assert Compared(pair, Interval(1.0, *bounds)).verdict(0.02) == verdict


def test_one_run_a_side_has_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = Machine(seconds_a_unit=4e-10)
    one, other = (
        make_run(tmp_path / "one", sweep(1)),
        make_run(tmp_path / "two", sweep(1), machine=slow),
    )
    assert main(["compare", str(one), str(other)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"no verdict: {ONE_RUN}"
    assert not any("slower" in line or "faster" in line for line in lines)
    assert sum(line.endswith(ONE_RUN) for line in lines) == 8 + 1


def bases(found: Comparison) -> set[str]:
    """What intervals come from."""
    groups = [row for one in found.groups for row in (one.seconds, one.beside) if row is not None]
    return {row.ratio.basis for row in (*found.steps, *groups)}


def test_repeats_that_were_measured_in_turn_are_pairs_and_others_are_not(tmp_path: Path) -> None:
    experiments = sweep(3, ("vig",))
    a = make_run(tmp_path / "a", experiments, stories=turns(experiments, 0))
    b = make_run(tmp_path / "b", experiments, stories=turns(experiments, 30))
    later = {one.id: [Story(started=f"2026-03-02T{one.repeat:02d}")] for one in experiments}
    c = make_run(tmp_path / "c", experiments, stories=later)
    found = compare_runs(a, b)
    assert bases(found) == {"3 pairs"}
    assert any("measured in turn, and are compared in pairs" in line for line in found.differs)
    found = compare_runs(a, c)
    assert bases(found) == {"3 and 3 runs"}
    assert any("not in turn: what changed on the machines" in line for line in found.differs)


def test_what_differs_is_said_in_one_line_each(tmp_path: Path) -> None:
    experiments = sweep(2, ("vig",))
    roots = []
    for name, header in (
        ("a", {"code": "aaa", "cpu_model": "Old", "host": "node7", "threads": 2}),
        ("b", {"code": "bbb", "cpu_model": "New", "host": "node8"}),
    ):
        stories = {one.id: [Story(header=header)] for one in experiments}
        roots.append(make_run(tmp_path / name, experiments, stories=stories))
    lines = compare_runs(*roots).differs
    assert lines[:-1] == [
        "code: aaa in A, bbb in B",
        "CPU model: Old in A, New in B",
        "threads a rank: 2 in A, 1 in B",
        "machines: node7 in A, node8 in B",
    ]


def test_cells_that_only_one_run_has_or_counts_are_named(tmp_path: Path) -> None:
    experiments = sweep(2)
    failed = experiments[0].id
    a = make_run(tmp_path / "a", experiments, stories={failed: [Story(status="failed", stop_at=3)]})
    b = make_run(tmp_path / "b", [*sweep(3, ("vig",)), *sweep(1, ("vig",), batch_size=40)])
    lines = compare_runs(a, b).alone
    assert "only in A: gat synthetic-citation pp2 m2 (2 cells)" in lines
    assert "only in B: vig synthetic-cifar10 seq m1 batch_size 40 (1 cell)" in lines
    assert "only in B: vig synthetic-cifar10 pp2 m2 batch_size 20, seed 0 repeat 2" in lines
    assert f"not counted in A: {failed}: failed" in lines


def test_losses_that_differ_are_said(tmp_path: Path) -> None:
    """In all cells of B: one that leaves the others of its run is not valid in the first place."""
    experiments = sweep(2, ("gat",))
    a, b = (make_run(tmp_path / name, experiments) for name in ("a", "b"))
    for path in RunPaths(b).cells.rglob("rank-*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            if record.get("phase") == "train" and record["step"] == 7 and record["loss"]:
                record["loss"] *= 1.01
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = compare_runs(a, b).losses
    assert found.compared == len(found.apart) == 4
    for line, cell in zip(found.apart, experiments, strict=True):
        assert line.startswith(f"{cell.id}: training loss of step 7 is ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{a}", "{tmp}/none"], "no such folder"),
        (["{a}", "{a}"], "the same folder twice"),
        (["{a}", "{b}", "--tolerance", "-0.1"], "--tolerance"),
        (["{a}", "{b}", "--tolerance", "nan"], "--tolerance"),
        (["{a}", "{b}", "--of", "mode"], "--of"),
        (["{a}", "{other}"], "no configuration"),
        (["{a}"], "RUN_B"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, sweep(1, ("gat",)))
    make_run(tmp_path / "other", sweep(1, ("vig",)))
    places = {"{tmp}": str(tmp_path)} | {f"{{{n}}}": str(tmp_path / n) for n in ("a", "b", "other")}
    for key, value in places.items():
        arguments = [argument.replace(key, value) for argument in arguments]
    assert main(["compare", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert says in captured.err
