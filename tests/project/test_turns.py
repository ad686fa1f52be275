"""Contestants of a benchmark: a process each, in turns, asleep meanwhile, in their best form."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks.flat_vig import FlatVig, batch_edges
from benchmarks.isolated import BenchmarkError
from benchmarks.one import _against
from benchmarks.turns import Entry, compete, failing, fastest
from benchmarks.vig_step import EdgeForm, made_up
from gnnhpc.core.facts import Facts
from gnnhpc.models.context import Context
from gnnhpc.models.model import BuildOptions
from gnnhpc.models.vig.model import Vig

TOOLS = "tests.tools.contestants"


def waiting(folder: Path, name: str, seconds: float = 1.0, per: float = 1.0) -> Entry:
    given = {"folder": str(folder), "name": name, "seconds": seconds}
    return Entry(f"{TOOLS}:waiting", given, per)


def broken(at_turn: int) -> Entry:
    return Entry(f"{TOOLS}:broken", {"at_turn": at_turn})


def test_contestants_take_turns_in_processes_of_their_own(tmp_path: Path) -> None:
    entries = {"a": waiting(tmp_path, "a", 2.0), "b": waiting(tmp_path, "b", 3.0, per=10.0)}
    found = compete(entries, rounds=2, threads=1, warmup=1)
    assert found == {"a": [2.0, 2.0], "b": [0.3, 0.3]}
    turns = [line.split() for line in (tmp_path / "turns").read_text().splitlines()]
    assert [name for name, *_ in turns] == ["a", "b"] * 3
    assert len({process for _, process, _ in turns}) == 2
    assert {states for *_, states in turns} == {"S"}, "one computed in another's turn"


@pytest.mark.parametrize(("at_turn", "said"), [(0, "No module named 'peer'"), (1, "out of memory")])
def test_who_fails_says_why(at_turn: int, said: str, tmp_path: Path) -> None:
    assert said in str(failing(broken(at_turn), threads=1))
    assert failing(waiting(tmp_path, "a"), threads=1) is None
    with pytest.raises(BenchmarkError, match=said):
        compete({"a": waiting(tmp_path, "a"), "b": broken(at_turn)}, rounds=1, threads=1)


def test_the_fastest_wins_and_who_fails_loses(tmp_path: Path) -> None:
    folders = tmp_path / "slow", tmp_path / "quick"
    for folder in folders:
        folder.mkdir()
    slow, quick = waiting(folders[0], "a", 3.0), waiting(folders[1], "b", 4.0, per=2.0)
    assert fastest([slow, broken(1), quick], rounds=1, threads=1) == quick
    with pytest.raises(BenchmarkError, match="out of memory"):
        fastest([broken(0), broken(1)], rounds=1, threads=1)


def test_the_goal_is_held_against_the_best_form() -> None:
    seconds = {"ours": [1.0, 1.0], "x": [9.0, 9.0], "y": [5.0, 5.0]}
    names = {"x": "X at 10", "y": "Y at 5", "z": "Z"}
    rows = list(_against("a step", seconds, "ours", names, {"z": "no z here"}, 4.0))
    assert [(row.what, row.goal, row.met) for row in rows] == [
        ("a step, X at 10", None, "no goal"),
        ("a step, Y at 5: the best form", 4.0, "yes"),
        ("a step, Z", None, "not measured: no z here"),
    ]
    (row,) = _against("a step", {"ours": [1.0]}, "ours", {"z": "Z"}, {"z": "no z here"}, 4.0)
    assert (row.goal, row.met) == (4.0, "not measured: no z here")


@pytest.mark.parametrize("form", ["edge_index", "adj_t"])
def test_the_studys_form_is_the_same_model(form: EdgeForm) -> None:
    """Loss and every gradient are our layers', so that equal work is timed."""
    if form == "adj_t" and importlib.util.find_spec("torch_sparse") is None:
        pytest.skip("torch_sparse is not installed")
    sizes = Vig(
        blocks=2, grapher_width=6, ffn_width=10, readout_width=8, implementation="pyg"
    )
    side, images = 5, 3
    facts = Facts("images", 3, 10, image_size=side, train=images, test=images)
    ours = nn.Sequential(
        *(sizes.build(o, BuildOptions(torch.float64)) for o in sizes.outline(facts))
    )
    flat = FlatVig(sizes, classes=10).double()
    names = renamed(ours)
    flat.load_state_dict({name: ours.state_dict()[other] for name, other in names.items()})
    pixels, labels = made_up(images, torch.device("cpu"))
    x = pixels[:, : side**2].double()

    expected = x
    for layer in ours:
        expected = layer(expected, Context())
    edges = batch_edges(form, side, images, torch.device("cpu"))
    found = flat(x.reshape(-1, 3), edges, torch.arange(images).repeat_interleave(side**2))
    for logits in (found, expected):
        functional.cross_entropy(logits, labels).backward()
    assert torch.allclose(found, expected)
    gradients = dict(ours.named_parameters())
    for name, parameter in flat.named_parameters():
        assert torch.allclose(parameter.grad, gradients[names[name]].grad, atol=1e-12), name


def renamed(ours: nn.Sequential) -> dict[str, str]:
    """Names of the flat form's tensors, and of ours that hold the same."""
    pairs = []
    for block in range((len(ours) - 1) // 2):
        grapher, ffn, flat = 2 * block, 2 * block + 1, f"blocks.{block}"
        pairs += [
            (f"{flat}.grapher_in.0", f"{grapher}.fc1"),
            (f"{flat}.grapher_in.1", f"{grapher}.norm1"),
            (f"{flat}.conv", f"{grapher}.conv"),
            (f"{flat}.grapher_out.0", f"{grapher}.fc2"),
            (f"{flat}.grapher_out.1", f"{grapher}.norm2"),
            (f"{flat}.ffn.0", f"{ffn}.fc1"),
            (f"{flat}.ffn.1", f"{ffn}.norm1"),
            (f"{flat}.ffn.3", f"{ffn}.fc2"),
            (f"{flat}.ffn.4", f"{ffn}.norm2"),
        ]
    last = len(ours) - 1
    pairs += [("readout.0", f"{last}.fc1"), ("readout.2", f"{last}.fc2")]
    return {
        name.replace(theirs, mine, 1): name
        for mine, theirs in pairs
        for name in ours.state_dict()
        if name.startswith(f"{theirs}.")
    }
