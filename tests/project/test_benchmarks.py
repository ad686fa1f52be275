"""The benchmarks: contestants take turns, the table has their ratios, and all rows can be built."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from benchmarks import turns
from benchmarks.__main__ import GROUPS
from benchmarks.contestants.library_layers import FlatVig, adjacency
from benchmarks.table import Comparison, Match, measure
from benchmarks.turns import BenchmarkError, Contestant, Started, compete
from gnnhpc.data.data_settings import SyntheticCifar10
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.model import BuildOptions, Context
from gnnhpc.models.vig.model import Vig
from gnnhpc.models.vig.reference import grid_edges


def waiting(folder: Path, name: str, seconds: float, per: float = 1.0) -> Contestant:
    arguments = {"folder": str(folder), "name": name, "seconds": seconds}
    return Contestant("tests.tools.contestants:waiting", arguments, per)


def broken(at_turn: int) -> Contestant:
    return Contestant("tests.tools.contestants:broken", {"at_turn": at_turn})


def test_contestants_take_turns_in_processes_of_their_own(tmp_path: Path) -> None:
    entries = {"a": waiting(tmp_path, "a", 2.0), "b": waiting(tmp_path, "b", 3.0, per=10.0)}
    taken, _ = compete(entries, rounds=2, threads=1, warmup=1)
    seconds = {name: [turn["seconds"] for turn in turns] for name, turns in taken.items()}
    assert seconds == {"a": [2.0, 2.0], "b": [0.3, 0.3]}
    assert all(turn["peak_mib"] > 1.0 for turns in taken.values() for turn in turns)
    turns = [line.split() for line in (tmp_path / "turns").read_text().splitlines()]
    assert [name for name, *_ in turns] == ["a", "b"] * 3
    assert len({process for _, process, _ in turns}) == 2
    assert {states for *_, states in turns} == {"S"}, "one computed in the other's turn"


def test_a_match_gives_a_row_for_each_form_and_the_fastest_has_the_goal(tmp_path: Path) -> None:
    seconds = {"ours": 1.0, "x": 9.0, "y": 5.0}
    for name in seconds:
        (tmp_path / name).mkdir()
    entries = {name: waiting(tmp_path / name, name, each) for name, each in seconds.items()}
    comparisons = [
        Comparison("a step", "ours", ("x", "y", "y2", "z"), 4.0),
        Comparison("limit 2", "ours", 2.0, 2.5),
        Comparison("half of x", "ours", "x", factor=0.5),
        Comparison("z", "z", "ours"),
    ]
    match = Match({**entries, "y2": broken(1), "z": broken(0)}, comparisons, rounds=2, warmup=0)
    found = [
        (row.what, row.goal, row.met, row.ratio and round(row.ratio.value, 6), row.failed)
        for row in measure(match, threads=1)
    ]
    later, at_once = (
        f"not measured: tests.tools.contestants:broken: {why}"
        for why in ("out of memory", "ModuleNotFoundError: No module named 'peer'")
    )
    assert found == [
        ("a step, x", None, "no goal", 9.0, False),
        ("a step, y: the fastest form", 4.0, "yes", 5.0, False),
        ("a step, y2", None, later, None, False),
        ("a step, z", None, at_once, None, False),
        ("limit 2", 2.5, "no", 2.0, False),
        ("half of x", None, "no goal", 4.5, False),
        ("z", None, at_once, None, True),
    ]


def test_nobody_takes_turns_where_ours_cannot(tmp_path: Path) -> None:
    entries = {"peer": waiting(tmp_path, "peer", 1.0), "ours": broken(0)}
    (row,) = measure(Match(entries, [Comparison("a step", "ours", "peer", 2.0)]), threads=1)
    assert row.failed
    assert not (tmp_path / "turns").exists()


def test_a_match_for_more_gpus_than_there_are_is_no_failure(tmp_path: Path) -> None:
    here, entries = torch.cuda.device_count(), {"ours": broken(0)}
    match = Match(entries, [Comparison("a step", "ours", 1.0, 1.0)], gpus=1_000)
    (row,) = measure(match, threads=1)
    assert row.met == f"not measured: {here} GPU{'' if here == 1 else 's'}, 1000 needed"
    assert not row.failed


def test_a_contestant_that_does_not_answer_ends_with_its_own_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "END_S", 2.0)
    contestant = Contestant("tests.tools.contestants:parent", {"folder": str(tmp_path)})
    begun = Started(contestant, 1, 60.0)
    begun.ready()
    child = (tmp_path / "child").read_text()
    begun.timeout_s = 0.0
    with pytest.raises(BenchmarkError, match="no answer in 0 s"):
        begun.turn()
    assert not Path("/proc", child).exists()


@pytest.mark.parametrize("group", GROUPS)
def test_rows_name_contestants_and_settings_that_exist(group: str) -> None:
    for match in (match for quick in (True, False) for match in GROUPS[group](quick=quick)):
        for entry in match.contestants.values():
            for each in [entry] if isinstance(entry, Contestant) else entry:
                module, _, name = each.function.partition(":")
                function = getattr(importlib.import_module(module), name)
                inspect.signature(function).bind(**each.arguments)
                if "settings" in each.arguments:
                    Experiment.model_validate(each.arguments["settings"])
        for comparison in match.comparisons:
            names: Any = comparison.reference
            names = (
                () if isinstance(names, float) else (names,) if isinstance(names, str) else names
            )
            assert {comparison.ours, *names} <= set(match.contestants), comparison.what


@pytest.mark.parametrize("form", ["edge_index", "adj_t"])
def test_the_studys_form_is_the_same_model(form: str) -> None:
    """Loss and every gradient are our layers', so that equal work is timed."""
    if form == "adj_t" and importlib.util.find_spec("torch_sparse") is None:
        pytest.skip("torch_sparse is not installed")
    sizes = Vig(blocks=2, grapher_width=6, ffn_width=10, readout_width=8, implementation="pyg")
    side, images = 5, 3
    specs = sizes.outline(SyntheticCifar10(image_size=side).facts())
    ours = torch.nn.ModuleList(sizes.build(spec, BuildOptions(torch.float64)) for spec in specs)
    flat = FlatVig(sizes, classes=10).double()
    # Both have their tensors in the same order.
    flat.load_state_dict(dict(zip(flat.state_dict(), ours.state_dict().values(), strict=True)))
    x = torch.rand(images, side**2, 3, dtype=torch.float64)
    edges = grid_edges((side, side), images, torch.device("cpu"))
    edges = edges if form == "edge_index" else adjacency(edges, images * side**2)
    outputs = [flat(x.flatten(0, 1), edges, torch.arange(images).repeat_interleave(side**2)), x]
    for layer in ours:
        outputs[1] = layer(outputs[1], Context())
    for logits in outputs:
        functional.cross_entropy(logits, torch.arange(images)).backward()
    assert torch.allclose(*outputs)
    for one, other in zip(flat.parameters(), ours.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad, other.grad, atol=1e-12)
