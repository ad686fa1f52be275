"""The table of benchmarks: its ratios, its verdicts, and the file it leaves."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import bench_gpu
from benchmarks.launch import Launcher, Measured
from benchmarks.ratios import FEWEST, against_limit, paired, spread, take_turns
from benchmarks.table import COLUMNS, Row, not_measured, write_csv
from gnnhpc.records.schema import Result
from tests.analysis import test_zbv
from tests.analysis.test_several_parts import BACKWARD, BY_HAND, FORWARD
from tests.analysis.test_summary import vig

SECONDS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20)


@given(SECONDS)
def test_an_interval_holds_its_median_and_stays_within_the_values(values: list[float]) -> None:
    found = spread(values)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)


def test_few_values_span_from_lowest_to_highest() -> None:
    values = [3.0, 1.0, 2.0]
    assert len(values) < FEWEST
    found = spread(values)
    assert (found.value, found.low, found.high) == (2.0, 1.0, 3.0)


def test_ratios_are_taken_turn_by_turn() -> None:
    found = paired([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert (found.ratio.low, found.ratio.value, found.ratio.high) == (2.0, 2.0, 2.0)
    assert (found.ours, found.reference) == (2.0, 4.0)


def test_turns_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="no values"):
        spread([])


def test_a_limit_is_kept_from_a_ratio_of_one() -> None:
    assert against_limit([2.0], 3.0).ratio.value == 1.5
    assert Row("at the limit", against_limit([3.0], 3.0), 1.0).met == "yes"
    assert Row("above it", against_limit([3.1], 3.0), 1.0).met == "no"


def test_contestants_take_turns_and_warm_up_is_left_out() -> None:
    order: list[str] = []

    def contestant(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = take_turns({n: lambda n=n: contestant(n) for n in "ab"}, rounds=2, warmup=1)
    assert order == ["a", "b"] * 3
    assert found == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_the_file_holds_every_row_with_its_verdict(tmp_path: Path) -> None:
    rows = [
        Row("fast", paired([1.0], [4.0]), 3.0),
        Row("slow", paired([1.0], [2.0]), 3.0),
        Row("small", paired([1.0], [4.0]), 3.0, quick=True),
        Row("told", paired([1.0], [4.0]), None),
        not_measured("absent", 3.0, "dgl not installed"),
    ]
    path = tmp_path / "report" / "bench.csv"
    write_csv(path, rows)
    with path.open(newline="", encoding="utf-8") as stream:
        header, *lines = csv.reader(stream)
    assert tuple(header) == COLUMNS
    assert [(line[0], line[-1]) for line in lines] == [
        ("fast", "yes"),
        ("slow", "no"),
        ("small", "not judged: --quick"),
        ("told", "no goal"),
        ("absent", "not measured: dgl not installed"),
    ]
    assert lines[0] == ["fast", "1", "4", "4", "4", "4", "3", "yes"]
    assert [entry.name for entry in path.parent.iterdir()] == ["bench.csv"]


def test_without_a_gpu_its_table_says_so_of_every_part(tmp_path: Path) -> None:
    machine = bench_gpu.Machine("2.13.0+cpu", 0, False, None, "gpu", False)
    rows, failed = bench_gpu.measure(machine, Launcher(tmp_path))
    assert not failed
    assert len(rows) == 6
    assert {row.met for row in rows} == {"not measured: no GPU that torch 2.13.0+cpu can use"}


def test_one_gpu_cannot_show_nccl(tmp_path: Path) -> None:
    machine = bench_gpu.Machine("2.13.0", 1, True, None, "gpu", False)
    rows = list(bench_gpu.two_ranks(machine, Launcher(tmp_path), shared=False))
    assert [row.met for row in rows] == [
        "not measured: 1 GPU, and NCCL needs one for each of two ranks"
    ] * 4


def test_a_gpu_is_shown_to_ranks_that_share_it_and_then_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.delenv("GNNHPC_SHARE_GPU", raising=False)
    with bench_gpu._gpus_shown(shared=True):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
        assert os.environ["GNNHPC_SHARE_GPU"] == "1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "GNNHPC_SHARE_GPU" not in os.environ


def test_the_ideal_of_several_parts_a_stage_is_of_each_ones_seconds() -> None:
    """The costs and the step worked out by hand in test_several_parts."""
    experiment = vig("pp2", 2, schedule="interleaved", virtual_stages=2)
    step = {"kind": "step", "phase": "train", "warmup": False}
    parts = [[2 * FORWARD[number], 2 * BACKWARD[number]] for number in range(4)]
    ranks = [[step | {"part_s": parts[stage::2]}] for stage in (0, 1)]
    result = Result(
        *("cell", 1, "done", {}, {}, {}, "", ""), train_steps=1, test_steps=0, samples_per_step=1
    )
    assert Measured(experiment, result, ranks, 0.0).ideals == [BY_HAND]


def test_the_ideal_of_zbv_is_of_each_parts_halves() -> None:
    """The costs and the step worked out by hand in test_zbv."""
    experiment = vig("pp2", 2, schedule="zbv")
    step = {"kind": "step", "phase": "train", "warmup": False}
    told = [[2 * f, 2 * (b + w), 2 * w] for f, b, w in zip(*test_zbv.COSTS, strict=True)]
    ranks = [[step | {"part_s": [told[n] for n in numbers]}] for numbers in ((0, 3), (1, 2))]
    result = Result(
        *("cell", 1, "done", {}, {}, {}, "", ""), train_steps=1, test_steps=0, samples_per_step=1
    )
    assert Measured(experiment, result, ranks, 0.0).ideals == [test_zbv.BY_HAND]


def test_the_ideal_of_weights_apart_knows_how_long_they_took() -> None:
    """F0 F1 .  B0 W0 B1 W1, and the last stage one column later."""
    experiment = vig("pp2", 2, schedule="zero-bubble")
    step = {"kind": "step", "phase": "train", "warmup": False}
    ranks = [[step | {"forward_s": 2.0, "backward_s": 4.0, "weights_s": 2.0}] for _ in range(2)]
    result = Result(
        *("cell", 1, "done", {}, {}, {}, "", ""), train_steps=1, test_steps=0, samples_per_step=1
    )
    assert Measured(experiment, result, ranks, 0.0).ideals == [7.0]
