"""`python -m tests.slower_layer`: how often `compare` names a layer that is a little slower.

Two runs of one GAT cell take turns, repeat by repeat; in the second the first layer takes
longer, forward and backward. `compare` must name that layer. With `--tries` half of the repeats are
drawn so many times, and each draw is compared. `make a-a` counts how often equal runs differ.
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

BEFORE, SLOWER = "before", "slower"
SLOWED = "layer0.attention"
DATA = {"name": "synthetic-citation", "nodes": 1200, "edges": 5000, "features": 128}
STEPS = {"train_steps": 150, "test_steps": 6, "test_every": None, "warmup_steps": 4}
PROFILED = 36
"""As many of the steps as may be profiled: a difference of 5 % in one layer needs them."""


def main() -> int:
    """0 when the slower run was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.slower_layer", description=__doc__)
    parser.add_argument("out", type=Path, help="a folder for the two runs, which is not there")
    parser.add_argument("--repeats", type=int, default=36)
    parser.add_argument("--slower", type=float, default=0.05, help="share of the layer's seconds")
    parser.add_argument("--tries", type=int, default=0, help="draws of half of the repeats")
    options = parser.parse_args()
    measure(options.out, options.repeats, options.slower)
    found = _compare(options.out)
    if options.tries:
        named = redraw(options.out, options.repeats, options.tries)
        print(f"{named} of {options.tries} draws of {options.repeats // 2} repeats named the layer")
    return EXIT_DONE if found else EXIT_FAILED


def redraw(out: Path, repeats: int, tries: int) -> int:
    """How many draws named the slower layer; they share repeats, so they are not independent."""
    numbers, named = random.Random(0), 0
    for number in range(tries):
        chosen = sorted(numbers.sample(range(repeats), repeats // 2))
        drawn = out / "draws" / str(number)
        for name in (BEFORE, SLOWER):
            cells = manifest_of(drawn / name, *map(cell, chosen))
            RunPaths(drawn / name).cells.mkdir()
            for one in cells:
                place = RunPaths(drawn / name).cell(one.id).root
                place.symlink_to(RunPaths(out / name).cell(one.id).root)
        named += _compare(drawn)
    return named


def measure(out: Path, repeats: int, share: float) -> None:
    """Run each repeat in both runs, the other one first each time."""
    cells = [cell(repeat) for repeat in range(repeats)]
    listed = {name: manifest_of(out / name, *cells) for name in (BEFORE, SLOWER)}
    for number in range(repeats):
        for name in (SLOWER, BEFORE) if number % 2 else (BEFORE, SLOWER):
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

    def end_forward(_: Any, inputs: Any, output: Tensor) -> None:
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


def _compare(out: Path) -> bool:
    """Whether something of the slower run in this folder is named."""
    print(f"compare {out / BEFORE} {out / SLOWER}", flush=True)
    command = ["compare", str(out / BEFORE), str(out / SLOWER), "--of", "median"]
    return analyse(command) == EXIT_FAILED


if __name__ == "__main__":
    raise SystemExit(main())
