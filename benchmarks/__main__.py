"""`python -m benchmarks [GROUP ...] [--quick]`: measure, write, show."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import benchmarks
from analysis.render.number_text import format_value
from benchmarks import rows_many_processes as many
from benchmarks import rows_one_process as one
from benchmarks.rows_gpu import gpu, gpu_more
from benchmarks.table import Match, Row, measure, show, write_csv
from benchmarks.turns import ROOT

Group = Callable[..., Iterator[Match]]
GROUPS: dict[str, Group] = {
    "recording": one.recording,
    "vig": one.vig,
    "gat": one.gat,
    "layers": one.layers,
    "graphs": one.graphs,
    "links": one.links,
    "microbatches": one.microbatches,
    "pipelines": many.pipelines,
    "schedules": many.schedules,
    "replicas": many.replicas,
    "suite": many.suite,
    "sampled": one.sampled,
    "gpu": gpu,
    "gpu-more": gpu_more,
}
BY_NAME = ("sampled", "gpu", "gpu-more")
"""Groups that need more memory or a GPU, so they run only where they are named."""


def main() -> int:
    """0 when all was measured, whether or not goals are met; 1 when something failed; 2 for wrong
    input."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=benchmarks.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--quick", action="store_true", help="small sizes; goals mean nothing")
    parser.add_argument("--threads", type=int, default=2, help="threads of one process; default 2")
    parser.add_argument("--only", default="", help="only comparisons whose name contains this")
    parser.add_argument("--out", type=Path, help="default: report/bench.csv, or bench-quick.csv")
    options = parser.parse_args()
    names = options.groups or [name for name in GROUPS if name not in BY_NAME]
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        parser.error(f"found {unknown[0]!r}; allowed: {', '.join(GROUPS)}")
    os.environ["GNNHPC_THREADS"] = str(options.threads)
    out = options.out or ROOT / "report" / ("bench-quick.csv" if options.quick else "bench.csv")
    rows: list[Row] = []
    known: list[str] = []
    for name in names:
        for match in GROUPS[name](quick=options.quick):
            known += [each.what for each in match.comparisons]
            if any(options.only in each.what for each in match.comparisons):
                for row in measure(match, options.threads, quick=options.quick):
                    rows.append(row)
                    words = map(format_value, (row.ours, row.reference, row.ratio, row.met))
                    print(f"{row.what}: {' '.join(words)}", flush=True)
                # A command that is ended early leaves what it has measured.
                write_csv(out, rows)
    if not rows:
        allowed = f"a part of one of: {'; '.join(dict.fromkeys(known))}"
        print(f"error: --only: found {options.only!r}; allowed: {allowed}", file=sys.stderr)
        return 2
    show(rows)
    print(out)
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
