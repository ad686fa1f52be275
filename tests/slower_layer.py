"""`python -m tests.slower_layer`: what `compare` says of real runs, one with a slower layer.

Three runs of one GAT cell are measured in turn, repeat by repeat: one, another in which the first
layer's forward lasts longer, and a third equal to the first. `compare` must call something slower
in the second, and nothing in the third (of equal runs it does so once in twenty at most). Medians
and no tolerance: on a machine that others use, means need more repeats.
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
    """0 when `compare` ended with 1 for the slower run and with 0 for the equal one, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.slower_layer", description=__doc__)
    parser.add_argument("out", type=Path, help="a folder for the three runs, which is not there")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--slower", type=float, default=0.08, help="share of the layer's forward")
    given = parser.parse_args()
    measure(given.out, given.repeats, given.slower)
    found = [_compare(given.out, name) for name in (SLOWER, EQUAL)]
    return EXIT_DONE if found == [EXIT_FAILED, EXIT_DONE] else EXIT_FAILED


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
    """Let the forward of one layer last so much longer, in this process."""
    from gnnhpc.engines import stage

    built = stage.Stage.__init__

    @functools.wraps(built)
    def build(self: Any, outlines: Any, modules: Any, *rest: Any) -> None:
        built(self, outlines, modules, *rest)
        for outline, module in zip(outlines, modules, strict=True):
            if outline.name == SLOWED:
                module.forward = _longer(module.forward, share)

    stage.Stage.__init__ = build  # type: ignore[method-assign]


def _longer(forward: Callable[..., Any], share: float) -> Callable[..., Any]:
    def slowed(*given: Any) -> Any:
        begin = time.perf_counter()
        found = forward(*given)
        now = time.perf_counter()
        until = now + share * (now - begin)
        while time.perf_counter() < until:
            pass
        return found

    return slowed


def _compare(out: Path, name: str) -> int:
    print(f"compare {BEFORE} {name}", flush=True)
    roots = [str(out / BEFORE), str(out / name)]
    return analyse(["compare", *roots, "--of", "median", "--tolerance", "0"])


if __name__ == "__main__":
    raise SystemExit(main())
