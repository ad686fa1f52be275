"""Runs whose cells are held against one another: siblings that differ, cells that are unlike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.loading.equal_cells import compare_losses
from analysis.loading.run import load
from analysis.summary.ideal_step import Passes, ideal_seconds
from analysis.summary.summary_table import summarise
from gnnhpc.core.schedule import ideal_step_s
from gnnhpc.data.settings import SyntheticCifar10
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.vig.model import Vig
from gnnhpc.records.run_paths import RunPaths
from tests.tools.make_run import Story, make_run
from tests.tools.result_files import rewrite_result

Record = dict[str, Any]


def vig(layout: str = "seq", microbatches: int = 2, **changes: Any) -> Experiment:
    fields = {
        "model": Vig(),
        "data": SyntheticCifar10(image_size=8),
        "batch_size": 20,
        "train_steps": 12,
        "test_steps": 2,
    }
    return Experiment.model_validate(
        fields | {"layout": layout, "microbatches": microbatches} | changes
    )


def change(root: Path, cell: Experiment, how: Callable[[Record], None], attempt: int = 1) -> None:
    """Rewrite every record of an attempt and its result: `how` changes each in place."""
    paths = RunPaths(root).cell(cell.id).attempt(attempt)
    for records in sorted(paths.root.glob("rank-*.jsonl")):
        lines = [json.loads(line) for line in records.read_text().splitlines()]
        for line in lines:
            how(line)
        records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if paths.result.exists():
        rewrite_result(paths.result, how)


def loss_from(step: int, by: float = 0.01, phase: str = "train") -> Callable[[Record], None]:
    def how(record: Record) -> None:
        if record.get("phase") == phase and record["step"] >= step and record["loss"] is not None:
            record["loss"] *= 1.0 + by

    return how


def measured_with(**facts: Any) -> Callable[[Record], None]:
    """Other threads, CPU or code: in the header, or in the result's provenance."""

    def how(record: Record) -> None:
        if record.get("kind") == "header":
            record |= {name: value for name, value in facts.items() if name in record}
        elif "provenance" in record:
            record["provenance"] |= facts

    return how


def row(summary: pd.DataFrame, layout: str, **also: Any) -> pd.Series:
    found = summary[(summary["phase"] == "train") & (summary["layout"] == layout)]
    for key, value in also.items():
        found = found[found[key] == value]
    assert len(found) == 1
    return found.iloc[0]


FOUR = [vig(), vig("pp2"), vig("pp4"), vig("dp2", 1, batch_size=10)]


def test_healthy_siblings_are_all_valid(tmp_path: Path) -> None:
    run = load(make_run(tmp_path / "run", FOUR))
    assert run.cells["counts"].all()
    assert run.checks.empty
    assert (run.siblings.families, len(run.siblings.compared)) == (1, 4)


def test_a_cell_that_leaves_its_siblings_is_in_no_average(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", FOUR)
    change(root, FOUR[2], loss_from(5))
    run = load(root)
    assert list(run.cells["valid"]) == [True, True, False, True]
    (check,) = run.checks.to_dict("records")
    assert (check["cell"], check["name"], check["verdict"]) == (FOUR[2].id, "siblings", "invalid")
    assert "training loss of step 5" in check["detail"]
    assert "alone against 3 that agree" in check["detail"]
    summary = summarise(run)
    assert (row(summary, "pp4")["n"], row(summary, "pp4")["flags"]) == (0, "")
    assert "1 invalid (siblings)" in row(summary, "pp4")["note"]
    assert row(summary, "pp2")["valid"]


def test_norms_of_all_stages_are_one_norm(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", FOUR)

    def one_stage(record: Record) -> None:
        if record.get("kind") == "step" and record["phase"] == "train" and record["step"] >= 3:
            record["grad_norm"] *= 1.5

    change(root, FOUR[1], one_stage)
    run = load(root)
    assert list(run.cells["flags"]) == ["", "siblings", "", ""]
    assert "gradient norm of step 3" in run.checks["detail"].iloc[0]


def test_evaluation_is_compared_too(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", FOUR)
    change(root, FOUR[1], loss_from(0, phase="test"))
    run = load(root)
    assert list(run.cells["flags"]) == ["", "siblings", "", ""]
    assert "test loss of mini-batch 0 after 12 steps" in run.checks["detail"].iloc[0]


def test_siblings_without_an_evaluation_are_compared_in_training_alone(tmp_path: Path) -> None:
    four = [one.model_copy(update={"test_steps": 0}) for one in FOUR]
    root = make_run(tmp_path / "run", four)
    change(root, four[1], loss_from(5))
    run = load(root)
    assert list(run.cells["flags"]) == ["", "siblings", "", ""]
    assert not compare_losses(run, run).apart


def test_a_repeated_attempt_must_agree(tmp_path: Path) -> None:
    cell = vig("pp2")
    twice = {cell.id: [Story(), Story()]}
    assert load(make_run(tmp_path / "same", [cell], stories=twice)).cells["valid"].all()
    root = make_run(tmp_path / "other", [cell], stories=twice)
    change(root, cell, loss_from(4))
    run = load(root)
    assert not run.cells["valid"].any()
    (detail,) = run.checks["detail"]
    assert "attempt 2: training loss of step 4" in detail
    assert f"{cell.id}, attempt 1" in detail
    assert "nobody is acquitted" in detail


def test_an_attempt_that_does_not_count_is_mentioned(tmp_path: Path) -> None:
    """The siblings speak for the second attempt, and that one counts."""
    root = make_run(tmp_path / "run", FOUR, stories={FOUR[1].id: [Story(), Story()]})
    change(root, FOUR[1], loss_from(4))
    run = load(root)
    assert run.cells["valid"].all()
    assert list(run.checks["name"]) == ["attempts"]
    assert run.checks["detail"].iloc[0].endswith("another attempt counts")


def test_an_unreadable_attempt_that_does_not_count_stops_nothing(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", FOUR, stories={FOUR[1].id: [Story(), Story()]})
    RunPaths(root).cell(FOUR[1].id).attempt(1).records(0).write_text("{}\n{}\n")
    assert load(root).cells["valid"].all()


RESUMED = [
    Story(status="interrupted", stop_at=8),
    Story(resumed_from={"attempt": 1, "step": 5}),
]


def test_steps_that_were_done_twice_must_agree(tmp_path: Path) -> None:
    cell = vig("pp2")
    assert (
        load(make_run(tmp_path / "same", [cell], stories={cell.id: RESUMED})).cells["valid"].all()
    )
    root = make_run(tmp_path / "other", [cell], stories={cell.id: RESUMED})
    change(root, cell, loss_from(5), attempt=2)
    run = load(root)
    assert list(run.cells["flags"]) == ["siblings"]
    assert "training loss of step 5" in run.checks["detail"].iloc[0]


def test_a_resume_keeps_the_steps_of_like_attempts_only(tmp_path: Path) -> None:
    cell = vig("pp2")
    root = make_run(tmp_path / "run", [cell], stories={cell.id: RESUMED})
    assert load(root).steps.query("phase == 'train' and kept")["step"].min() == 1
    change(root, cell, measured_with(threads=2), attempt=1)
    run = load(root)
    train = run.steps[run.steps["phase"] == "train"]
    assert list(train["step"]) == list(range(12))
    # The first step after the resume is warm-up again.
    assert train[train["kept"]]["step"].min() == 6
    assert run.cells["counts"].all()
    assert list(run.cells["flags"]) == ["unlike"]
    assert "threads a rank 1 beside 2 of attempt 1" in run.checks["detail"].iloc[0]


def test_a_repeat_that_is_unlike_is_in_no_average(tmp_path: Path) -> None:
    cells = [vig(layout, repeat=r) for r in range(3) for layout in ("seq", "pp2")]
    root = make_run(tmp_path / "run", cells)
    change(root, cells[3], measured_with(threads=2))
    run = load(root)
    assert list(run.cells["counts"]) == [True, True, True, False, True, True]
    assert run.cells["valid"].all()
    one = row(summarise(run, "seq:2"), "pp2")
    assert (one["cells_used"], one["n"], one["flags"]) == (2, 22, "")
    assert "1 of 3 cells left out: 1 unlike (threads a rank 2 beside 1)" in one["note"]
    assert one["speedup"] > 0


def test_cells_that_are_not_valid_do_not_shift_who_is_unlike(tmp_path: Path) -> None:
    failed = vig(repeat=7)
    fused = [vig(layout) for layout in ("seq", "pp2", "pp4")]
    plain = [vig(layout, model=Vig(implementation="pyg")) for layout in ("seq", "pp2")]
    stories = {failed.id: [Story(status="failed", stop_at=1)]}
    root = make_run(tmp_path / "run", [failed, *fused, *plain], stories=stories)
    for cell in plain:
        change(root, cell, measured_with(implementation="pyg"))
    for cell in fused:
        change(root, cell, measured_with(implementation="fused/c++"))
    run = load(root)
    assert list(run.cells["counts"]) == [False, *[True] * 5]
    assert set(run.cells["difference"]) == {""}


def test_a_configuration_that_is_unlike_has_times_and_no_speedup(tmp_path: Path) -> None:
    cells = [vig(), vig("pp2"), vig("pp4")]
    root = make_run(tmp_path / "run", cells)
    change(root, cells[1], measured_with(code="bbb"))
    for cell in (cells[0], cells[2]):
        change(root, cell, measured_with(code="aaa"))
    run = load(root)
    summary = summarise(run, "seq:2")
    unlike, like = row(summary, "pp2"), row(summary, "pp4")
    assert (unlike["n"], unlike["flags"]) == (11, "unlike")
    assert np.isnan(unlike["speedup"]) and np.isnan(unlike["speedup_same_m"])
    assert "code bbb beside aaa" in unlike["note"]
    assert like["speedup"] > 0 and like["flags"] == ""


def test_unlike_cells_are_shown_apart_where_it_is_asked_for(tmp_path: Path) -> None:
    cells = [vig(layout, repeat=r) for r in range(2) for layout in ("seq", "pp2")]
    root = make_run(tmp_path / "run", cells)
    for cell in cells[2:]:
        change(root, cell, measured_with(cpu_model="Other CPU"))
    run = load(root, apart=True)
    assert run.cells["counts"].all()
    summary = summarise(run, "seq:2")
    assert sorted(set(summary["apart"])) == ["", "CPU model Other CPU beside Made CPU"]
    for words in set(summary["apart"]):
        seq, pp2 = (row(summary, layout, apart=words) for layout in ("seq", "pp2"))
        assert (seq["cells_used"], pp2["cells_used"]) == (1, 1)
        assert pp2["speedup"] == pytest.approx(pp2["samples_per_s"] / seq["samples_per_s"])


def test_what_is_not_recorded_is_no_difference_and_is_said(tmp_path: Path) -> None:
    cells = [vig(), vig("pp2")]
    root = make_run(tmp_path / "run", cells)
    change(root, cells[1], measured_with(code="aaa"))
    run = load(root)
    assert run.cells["counts"].all()
    assert row(summarise(run, "seq:2"), "pp2")["speedup"] > 0
    assert [run.facts[cell.id]["code"] for cell in cells] == [None, "aaa"]


def test_a_difference_is_named_by_its_fact(tmp_path: Path) -> None:
    """Kernels of each rank, packages, GPUs and the site's settings, each with both values."""
    site = {"name": "a", "partition": "fast", "cpus_per_task": 2}
    usual = {
        "versions": {"torch": "2.13.0", "gnnhpc": "1"},
        "implementation": "fused/c++",
        "kernels": {"vig": "g++ 12"},
        "site": site,
        "device_facts": {"driver": "535.1", "name": "A100"},
        "cpu_capability": "AVX2",
        "variables": {"MKL_CBWR": "AVX2"},
    }
    other = [
        ({"versions": {"torch": "2.12.1", "gnnhpc": "2"}}, "torch 2.12.1 beside 2.13.0"),
        ({"implementation": "fused/torch"}, "implementation fused/torch beside fused/c++"),
        ({"kernels": {"vig": "clang 17"}}, "kernel vig clang 17 beside g++ 12"),
        ({"device_facts": {"driver": "550.2"}}, "GPU driver 550.2 beside 535.1"),
        ({"device_facts": {"name": "H200"}}, "GPU H200 beside A100"),
        ({"cpu_capability": "DEFAULT"}, "instructions DEFAULT beside AVX2"),
        ({"variables": {}}, "variable MKL_CBWR none beside AVX2"),
        ({"site": {"name": "a", "cpus_per_task": 2}}, "site partition none beside fast"),
        ({"site": site | {"cpus_per_task": 4}}, "site cpus_per_task 4 beside 2"),
        ({"site": site | {"name": "b"}}, ""),
        ({"kernels": {"vig": "g++ 12, built for this process alone"}}, ""),
        ({"kernels": {}, "site": None, "versions": {}}, ""),
    ]
    cells = [vig("pp2", repeat=r) for r in range(len(other) + 10)]
    root = make_run(tmp_path / "run", cells)
    for number, cell in enumerate(cells):
        facts = usual | (other[number][0] if number < len(other) else {})
        change(root, cell, measured_with(**facts))
    run = load(root)
    assert list(run.cells["difference"]) == [words for _, words in other] + [""] * 10


def test_transfers_are_a_fact_of_each_layout_and_engine(tmp_path: Path) -> None:
    """Stages of pp4 may be on two nodes, where those of pp2 are on one."""
    by_gloo = vig("pp2", repeat=2)
    cells = [vig("pp2"), vig("pp2", repeat=1), by_gloo, vig("pp4"), vig("dp2")]
    root = make_run(tmp_path / "run", cells)
    ways = ["shared memory", "shared memory", "gloo", "shared memory and gloo", None]
    for cell, way in zip(cells, ways, strict=True):
        change(root, cell, measured_with(transfers=way))
    found = load(root).cells["difference"]
    words = "transfers of pp2 by native gloo beside shared memory"
    assert list(found) == ["", "", words, "", ""]


def test_ranks_of_two_kinds_are_a_fact_of_their_own(tmp_path: Path) -> None:
    cells = [vig(), vig("pp2")]
    root = make_run(tmp_path / "run", cells)

    def second_rank(record: Record) -> None:
        if record.get("kind") == "header" and record["rank"] == 1:
            record["cpu_model"] = "Other CPU"

    change(root, cells[1], second_rank)
    note = row(summarise(load(root), "seq:2"), "pp2")["note"]
    assert "CPU model Made CPU and Other CPU beside Made CPU" in note


def test_other_batch_sizes_are_not_compared_without_a_word(tmp_path: Path) -> None:
    cells = [vig(), vig("pp2", batch_size=40), vig("dp2", 1, batch_size=10), vig("dp2-pp2")]
    summary = summarise(load(make_run(tmp_path / "run", cells)), "seq:2")
    other = row(summary, "pp2")
    assert np.isnan(other["speedup"])
    assert "unlike" in other["flags"]
    assert "batch size 40 a replica and 40 together beside 20 and 20" in other["note"]
    shared = row(summary, "dp2")
    assert shared["speedup"] > 0
    assert "2 replicas share" in shared["note"]
    assert "share" not in row(summary, "dp2-pp2")["note"]


def test_efficiency_is_of_one_statistic(tmp_path: Path) -> None:
    """A few steps in which everything took five times as long change neither side alone."""
    cell = vig("pp2", 4, train_steps=40)
    root = make_run(tmp_path / "run", [cell])
    before = row(summarise(load(root)), "pp2")["efficiency"]
    times = ("wall_s", "forward_s", "backward_s", "allreduce_s", "optimizer_s", "wait_s")

    def slow(record: Record) -> None:
        if record.get("kind") == "step":
            record["start_s"] = 10.0 * record["step"] + 1e3 * (record["phase"] == "test")
            if record["step"] % 5 == 4:
                record |= {name: 5.0 * record[name] for name in times}

    change(root, cell, slow)
    after = row(summarise(load(root)), "pp2")
    assert after["mean_s"] > 1.5 * after["median_s"]
    assert after["efficiency"] == pytest.approx(before, rel=0.01)


def test_efficiency_holds_where_stages_are_slow_in_turns(tmp_path: Path) -> None:
    """Now the forward and now the backward is slow: medians of parts miss both."""
    cell = vig("seq", 2, train_steps=61)
    root = make_run(tmp_path / "run", [cell])
    before = row(summarise(load(root)), "seq")["efficiency"]

    def in_turns(record: Record) -> None:
        if record.get("kind") != "step":
            return
        record["start_s"] = 10.0 * record["step"] + 1e3 * (record["phase"] == "test")
        slow = ("forward_s", "backward_s", None)[record["step"] % 3]
        if record["phase"] == "train" and slow:
            record["wall_s"] += 2.0 * record[slow]
            record[slow] *= 3.0

    change(root, cell, in_turns)
    after = row(summarise(load(root)), "seq")
    assert after["efficiency"] == pytest.approx(before, rel=0.02)


def test_the_ideal_of_steps_together_is_that_of_each() -> None:
    rng = np.random.default_rng(0)
    for schedule, stages, count in (
        *(("gpipe", 3, 4), ("1f1b", 4, 6), ("gpipe", 1, 2)),
        *(("zero-bubble", 3, 4), ("zero-bubble", 4, 2), ("zero-bubble", 1, 2)),
    ):
        passes = rng.uniform(0.1, 1.0, (3, stages, 5))
        several = Passes(*map(list, passes))
        for training in (True, False):
            together = ideal_seconds(schedule, several, count, training=training)
            alone = []
            for n in range(5):
                forward, backward, weights = passes[:, :, n].tolist()
                alone.append(
                    ideal_step_s(
                        *(schedule, forward, backward, count),
                        weights_s=weights,
                        training=training,
                    )
                )
            assert together == pytest.approx(alone)


@pytest.mark.parametrize("newer", [False, True])
def test_waiting_inside_an_all_reduce_is_waiting(tmp_path: Path, newer: bool) -> None:
    """The second replica comes late, and the first one is blocked: older records have no wait."""
    cell = vig("dp2", 2)
    root = make_run(tmp_path / "run", [cell])
    before = row(summarise(load(root)), "dp2")["bubble"]
    late = 0.25

    def blocked(record: Record) -> None:
        if record.get("kind") == "step" and record["phase"] == "train":
            record |= {"wait_s": 0.0, "allreduce_s": 0.01 * record["wall_s"]}
            record["waiting_cpu_s"] = 0.0 if newer else None
            computes_the_rest(record)

    change(root, cell, blocked)
    records = RunPaths(root).cell(cell.id).attempt(1).records(0)
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for line in lines[1:]:
        if line["phase"] == "train":
            line["wait_s" if newer else "allreduce_s"] += late * line["wall_s"]
            # What newer records call all-reduce is none of it waiting, however it differs.
            line["allreduce_s"] += 0.02 * line["wall_s"] * newer
            computes_the_rest(line)
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = load(root)
    after = row(summarise(run), "dp2")["bubble"]
    assert before < 0.05
    # One of two ranks waited for a quarter of its time; the all-reduce itself is work.
    assert after == pytest.approx(late / 2, rel=1e-6)
    train = run.steps[run.steps["phase"] == "train"]
    # No second is both: the parts of a step add up.
    cost = (train["allreduce_s"] / train["wall_s"]).to_numpy()
    assert cost == pytest.approx(0.02 if newer else 0.01)


def computes_the_rest(record: Record) -> None:
    others = ("backward_s", "allreduce_s", "optimizer_s", "wait_s")
    record["forward_s"] = record["wall_s"] - sum(record[name] for name in others)
