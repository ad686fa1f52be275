"""The benchmarks: contestants take turns, the table has their ratios, and all rows can be built."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from benchmarks.__main__ import GROUPS
from benchmarks.contestants.vig_steps import (
    EdgeForm,
    FlatVig,
    batch_edges,
    made_up,
    our_layers,
    through,
)
from benchmarks.table import Comparison, Match, measure
from benchmarks.turns import Contestant, compete
from gnnhpc.models.vig.model import Vig

TOOLS = "tests.tools.contestants"


def waiting(folder: Path, name: str, seconds: float = 1.0, per: float = 1.0) -> Contestant:
    given = {"folder": str(folder), "name": name, "seconds": seconds}
    return Contestant(f"{TOOLS}:waiting", given, per)


def broken(at_turn: int) -> Contestant:
    return Contestant(f"{TOOLS}:broken", {"at_turn": at_turn})


def test_contestants_take_turns_in_processes_of_their_own(tmp_path: Path) -> None:
    entries = {"a": waiting(tmp_path, "a", 2.0), "b": waiting(tmp_path, "b", 3.0, per=10.0)}
    taken = compete(entries, rounds=2, threads=1, warmup=1).taken
    seconds = {name: [turn["seconds"] for turn in turns] for name, turns in taken.items()}
    assert seconds == {"a": [2.0, 2.0], "b": [0.3, 0.3]}
    assert all(turn["peak_mib"] > 1.0 for turns in taken.values() for turn in turns)
    turns = [line.split() for line in (tmp_path / "turns").read_text().splitlines()]
    assert [name for name, *_ in turns] == ["a", "b"] * 3
    assert len({process for _, process, _ in turns}) == 2
    assert {states for *_, states in turns} == {"S"}, "one computed in the other's turn"


def test_a_match_gives_a_row_for_each_form_and_the_fastest_has_the_goal(tmp_path: Path) -> None:
    for name in ("a", "x", "y"):
        (tmp_path / name).mkdir()
    entries = {
        "ours": waiting(tmp_path / "a", "a", 1.0),
        "x": waiting(tmp_path / "x", "x", 9.0),
        "y": waiting(tmp_path / "y", "y", 5.0),
        "y2": broken(1),
        "z": broken(0),
    }
    comparisons = [
        Comparison("a step", "ours", ("x", "y", "y2", "z"), 4.0),
        Comparison("limit 2", "ours", 2.0, 2.5),
        Comparison("half of x", "ours", "x", factor=0.5),
        Comparison("z", "z", "ours"),
    ]
    rows = list(measure(Match(entries, comparisons, rounds=2, warmup=0), threads=1))
    assert [(row.what, row.goal, row.met.partition(":")[0]) for row in rows] == [
        ("a step, x", None, "no goal"),
        ("a step, y: the fastest form", 4.0, "yes"),
        ("a step, y2", None, "not measured"),
        ("a step, z", None, "not measured"),
        ("limit 2", 2.5, "no"),
        ("half of x", None, "no goal"),
        ("z", None, "not measured"),
    ]
    ratios = [row.ratio.value for row in rows if row.ratio]
    assert ratios == pytest.approx([9.0, 5.0, 2.0, 4.5])
    assert [row.failed for row in rows] == [False] * 6 + [True]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("group", GROUPS)
def test_rows_name_contestants_that_exist(group: str, quick: bool) -> None:
    for match in GROUPS[group](quick=quick):
        entries = match.contestants.values()
        variants = [v for e in entries for v in ([e] if isinstance(e, Contestant) else e)]
        for each in variants:
            module, _, name = each.function.partition(":")
            function = getattr(importlib.import_module(module), name)
            inspect.signature(function).bind(**each.arguments)
        for comparison in match.comparisons:
            names = comparison.reference
            names = (
                (names,) if isinstance(names, str) else () if isinstance(names, float) else names
            )
            assert {comparison.ours, *names} <= set(match.contestants), comparison.what


@pytest.mark.parametrize("form", ["edge_index", "adj_t"])
def test_the_studys_form_is_the_same_model(form: EdgeForm) -> None:
    """Loss and every gradient are our layers', so that equal work is timed."""
    if form == "adj_t" and importlib.util.find_spec("torch_sparse") is None:
        pytest.skip("torch_sparse is not installed")
    sizes = Vig(blocks=2, grapher_width=6, ffn_width=10, readout_width=8, implementation="pyg")
    side, images = 5, 3
    ours = our_layers(sizes, torch.float64, side)
    flat = FlatVig(sizes, classes=10).double()
    # Both have their tensors in the same order.
    flat.load_state_dict(dict(zip(flat.state_dict(), ours.state_dict().values(), strict=True)))
    pixels, labels = made_up(images, torch.device("cpu"))
    x = pixels[:, : side**2].double()
    edges = batch_edges(form, side, images, torch.device("cpu"))
    image = torch.arange(images).repeat_interleave(side**2)
    outputs = [flat(x.reshape(-1, 3), edges, image), through(ours, x)]
    for logits in outputs:
        functional.cross_entropy(logits, labels).backward()
    assert torch.allclose(*outputs)
    for one, other in zip(flat.parameters(), ours.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad, other.grad, atol=1e-12)
