"""`python -m benchmarks [one|layers|links|many|suite ...] [--quick]`: measure, write, show."""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from pathlib import Path

from rich.console import Console

import benchmarks
from benchmarks import layers, links, many, one, suite
from benchmarks.isolated import ROOT, BenchmarkError
from benchmarks.table import Row, not_measured, show, write_csv

GROUPS = ("one", "layers", "links", "many", "suite")


def main() -> int:
    """0 when all was measured, whether or not goals are met; 1 when something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=benchmarks.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="*", metavar="|".join(GROUPS), help="default: all")
    parser.add_argument("--quick", action="store_true", help="in small, goals not judged")
    parser.add_argument(
        "--threads", type=int, default=2, help="of one process; default 2, many use one each"
    )
    parser.add_argument("--out", type=Path, help="default: report/bench.csv, or bench-quick.csv")
    given = parser.parse_args()
    unknown = [group for group in given.groups if group not in GROUPS]
    if unknown:
        parser.error(f"found {unknown[0]!r}; allowed: {', '.join(GROUPS)}")
    out = given.out or ROOT / "report" / ("bench-quick.csv" if given.quick else "bench.csv")
    rows, failed = _measure(given.groups or list(GROUPS), given.quick, given.threads)
    write_csv(out, rows)
    show(rows, Console(width=None if os.isatty(1) else 200))
    print(out)
    return 1 if failed else 0


def _measure(groups: list[str], quick: bool, threads: int) -> tuple[list[Row], bool]:
    """The rows of each group, told as they come; a part that fails becomes a row that says so."""
    rows: list[Row] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="gnnhpc-bench-") as name:
        folder = Path(name)
        parts = {
            "one": one.parts(folder / "one", quick=quick, threads=threads),
            "layers": layers.parts(folder / "layers", quick=quick, threads=threads),
            "links": links.parts(quick=quick, threads=threads),
            "many": many.parts(folder / "many", quick=quick),
            "suite": suite.parts(folder / "suite", quick=quick),
        }
        for group in groups:
            for part, measure in parts[group].items():
                try:
                    for measured in measure():
                        rows.append(dataclasses.replace(measured, quick=quick))
                        print(f"{rows[-1].what}: {rows[-1].outcome}", flush=True)
                except BenchmarkError as error:
                    failed = True
                    rows.append(not_measured(f"{group}: {part}", None, str(error)))
                    print(f"{group}: {part}: {error}", flush=True)
    return rows, failed


if __name__ == "__main__":
    raise SystemExit(main())
