"""`python -m tests.slower_layer`: what `compare` says of real runs, one with a slower layer.

Three runs of one GAT cell are measured in turn, repeat by repeat: one, another in which the first
layer takes longer, forward and backward, and a third equal to the first. `compare` must name that
layer in the second, beyond its usual tolerance, and nothing in the third (of equal runs it calls
something slower once in twenty times at most). With `--tries` half of the repeats are drawn so many
times, of the equal runs with sides changed at random, and each draw is compared.
"""

from __future__ import annotations

import argparse
import functools
import random
import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from analysis.cli import main as analyse
from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.experiment import Experiment
from tests.tools.cells import gat, manifest_of, run

BEFORE, SLOWER, EQUAL = "before", "slower", "equal"
SLOWED = "layer0.attention"
DATA = {"name": "synthetic-citation", "nodes": 1200, "edges": 5000, "features": 128}
STEPS = {"train_steps": 150, "test_steps": 6, "test_every": None, "warmup_steps": 4}
PROFILED = 36
"""As many of the steps as may be profiled: a difference of 5 % in one layer needs them."""


def main() -> int:
    """0 when the slower run was found, and at most one equal run in twenty was called slower."""
    parser = argparse.ArgumentParser(prog="python -m tests.slower_layer", description=__doc__)
    parser.add_argument("out", type=Path, help="a folder for the three runs, which is not there")
    parser.add_argument("--repeats", type=int, default=36)
    parser.add_argument("--slower", type=float, default=0.05, help="share of the layer's seconds")
    parser.add_argument("--tries", type=int, default=0, help="draws of half of the repeats")
    given = parser.parse_args()
    measure(given.out, given.repeats, given.slower)
    found = [_compare(given.out / BEFORE, given.out / name) for name in (SLOWER, EQUAL)]
    good = found == [EXIT_FAILED, EXIT_DONE]
    if given.tries:
        named, alarms = redraw(given.out, given.repeats, given.tries)
        print(
            f"of {given.tries} draws of {given.repeats // 2} repeats: {named} named the slower "
            f"layer, {alarms} called an equal run slower"
        )
        good = good and alarms <= given.tries / 20
    return EXIT_DONE if good else EXIT_FAILED


def redraw(out: Path, repeats: int, tries: int) -> tuple[int, int]:
    """How many draws named the slower layer, and how many called something of an equal run slower.

    Draws share repeats, so they are not independent of one another.
    """
    numbers = random.Random(0)
    counts = {SLOWER: 0, EQUAL: 0}
    for number in range(tries):
        chosen = sorted(numbers.sample(range(repeats), repeats // 2))
        for name in counts:
            sides = [
                (name, BEFORE) if name == EQUAL and numbers.random() < 0.5 else (BEFORE, name)
                for _ in chosen
            ]
            drawn = out / "draws" / f"{name}-{number}"
            for side, picked in zip("ab", zip(*sides, strict=True), strict=True):
                _gather(out, drawn / side, dict(zip(chosen, picked, strict=True)))
            counts[name] += _compare(drawn / "a", drawn / "b") == EXIT_FAILED
    return counts[SLOWER], counts[EQUAL]


def _gather(out: Path, root: Path, picked: dict[int, str]) -> None:
    """A run folder of these repeats, each from the run that is named."""
    cells = manifest_of(root, *(cell(repeat) for repeat in picked))
    RunPaths(root).cells.mkdir()
    for one, name in zip(cells, picked.values(), strict=True):
        RunPaths(root).cell(one.id).root.symlink_to(RunPaths(out / name).cell(one.id).root)


def measure(out: Path, repeats: int, share: float) -> None:
    """Run each repeat in all three runs, another one first each time."""
    cells = [cell(repeat) for repeat in range(repeats)]
    listed = {name: manifest_of(out / name, *cells) for name in (BEFORE, SLOWER, EQUAL)}
    for number in range(repeats):
        names = list(listed)
        for name in names[number % 3 :] + names[: number % 3]:
            plant = functools.partial(slow_down, share) if name == SLOWER else None
            ran = run(out / name, listed[name][number], plant=plant)
            if any(status != 0 for status in ran.statuses):
                raise SystemExit("\n".join(ran.err))


def cell(repeat: int) -> Experiment:
    return gat(data=DATA, microbatches=1, repeat=repeat, profile_steps=PROFILED, **STEPS)


def slow_down(share: float) -> None:
    """Let one layer take so much longer, forward and backward, in this process."""
    from gnnhpc.engines import stage

    built = stage.Stage.__init__

    @functools.wraps(built)
    def build(self: Any, specs: Any, modules: Any, *rest: Any) -> None:
        built(self, specs, modules, *rest)
        for spec, module in zip(specs, modules, strict=True):
            if spec.name == SLOWED:
                _make_longer(module, share)

    stage.Stage.__init__ = build  # type: ignore[method-assign]


def _make_longer(module: nn.Module, share: float) -> None:
    """Let the module's forward last longer, and the backward of its result.

    A backward is over when the last parameter has its gradient.
    """
    began, left = {"forward": 0.0, "backward": 0.0}, 0
    parameters = list(module.parameters())

    def begin_backward(_: Any) -> None:
        nonlocal left
        began["backward"], left = time.perf_counter(), len(parameters)

    def end_backward(_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            _spin(share * (time.perf_counter() - began["backward"]))

    def begin_forward(*_: Any) -> None:
        began["forward"] = time.perf_counter()

    def end_forward(_: Any, given: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(begin_backward)
        _spin(share * (time.perf_counter() - began["forward"]))

    for parameter in parameters:
        parameter.register_hook(end_backward)
    module.register_forward_pre_hook(begin_forward)
    module.register_forward_hook(end_forward)


def _spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _compare(one: Path, other: Path) -> int:
    print(f"compare {one} {other}", flush=True)
    return analyse(["compare", str(one), str(other), "--of", "median"])


if __name__ == "__main__":
    raise SystemExit(main())
