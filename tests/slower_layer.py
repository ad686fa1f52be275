"""`python -m tests.slower_layer`: what `compare` says of real runs, one with a slower layer.

Three runs of one GAT cell are measured in turn, repeat by repeat: one, another in which the first
layer takes longer, forward and backward, and a third equal to the first. `compare` must name that
layer in the second, beyond its usual tolerance, and nothing in the third (of equal runs it calls
something slower once in twenty times at most). Of so many times over, with `--tries`, how often.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analysis.cli import main as analyse
from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED
from gnnhpc.spec.experiment import Experiment
from tests.tools.cells import gat, manifest_of, run

BEFORE, SLOWER, EQUAL = "before", "slower", "equal"
SLOWED = "layer0.attention"
DATA = {"name": "synthetic-citation", "nodes": 1200, "edges": 5000, "features": 128}
STEPS = {"train_steps": 150, "test_steps": 6, "test_every": None, "warmup_steps": 4}


def main() -> int:
    """0 when every slower run was found, and at most one equal run in twenty was called slower."""
    parser = argparse.ArgumentParser(prog="python -m tests.slower_layer", description=__doc__)
    parser.add_argument("out", type=Path, help="a folder for the three runs, which is not there")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--slower", type=float, default=0.05, help="share of the layer's seconds")
    parser.add_argument("--tries", type=int, default=1, help="so many studies, each of its own")
    given = parser.parse_args()
    found: dict[str, list[int]] = {SLOWER: [], EQUAL: []}
    for number in range(given.tries):
        root = given.out / str(number) if given.tries > 1 else given.out
        measure(root, given.repeats, given.slower)
        for name, statuses in found.items():
            statuses.append(_compare(root, name))
    named, alarms = (statuses.count(EXIT_FAILED) for statuses in found.values())
    print(f"of {given.tries}: {named} named the slower layer, {alarms} called an equal run slower")
    good = named == given.tries and alarms <= max(0, given.tries // 20)
    return EXIT_DONE if good else EXIT_FAILED


def measure(out: Path, repeats: int, share: float) -> None:
    """Run each repeat in all three runs, another one first each time."""
    cells = [cell(repeat) for repeat in range(repeats)]
    listed = {name: manifest_of(out / name, *cells) for name in (BEFORE, SLOWER, EQUAL)}
    for number in range(repeats):
        names = list(listed)
        for name in names[number % 3 :] + names[: number % 3]:
            plant = functools.partial(slow_down, share) if name == SLOWER else None
            ran = run(out / name, listed[name][number], plant=plant)
            if any(ran.statuses):
                raise SystemExit("\n".join(ran.err))


def cell(repeat: int) -> Experiment:
    return gat(data=DATA, microbatches=1, repeat=repeat, **STEPS)


def slow_down(share: float) -> None:
    """Let one layer take so much longer, forward and backward, in this process."""
    from gnnhpc.engines import stage

    built = stage.Stage.__init__

    @functools.wraps(built)
    def build(self: Any, outlines: Any, modules: Any, *rest: Any) -> None:
        built(self, outlines, modules, *rest)
        for outline, module in zip(outlines, modules, strict=True):
            if outline.name == SLOWED:
                module.forward = _longer(module, share)

    stage.Stage.__init__ = build  # type: ignore[method-assign]


def _longer(module: Any, share: float) -> Callable[..., Any]:
    """A forward that lasts longer, and makes the backward of its result do so.

    A backward is over when the last parameter has its gradient.
    """
    forward, began, left = module.forward, 0.0, 0
    parameters = list(module.parameters())

    def begin_backward(_: Any) -> None:
        nonlocal began, left
        began, left = time.perf_counter(), len(parameters)

    def end_backward(_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            _spin(share * (time.perf_counter() - began))

    for parameter in parameters:
        parameter.register_hook(end_backward)

    def slowed(*given: Any) -> Any:
        begin = time.perf_counter()
        found = forward(*given)
        if found.requires_grad:
            found.register_hook(begin_backward)
        _spin(share * (time.perf_counter() - begin))
        return found

    return slowed


def _spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _compare(out: Path, name: str) -> int:
    print(f"compare {BEFORE} {name}", flush=True)
    roots = [str(out / BEFORE), str(out / name)]
    return analyse(["compare", *roots, "--of", "median"])


if __name__ == "__main__":
    raise SystemExit(main())
