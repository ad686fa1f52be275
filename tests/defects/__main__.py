"""`python -m tests.defects`: plant all, print the matrix; `--only NAME`, `--table`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.defects.matrix import kinds, print_rows, write_block
from tests.defects.planting import Planting


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.defects", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="defects with this in their name or class")
    parser.add_argument(
        "--table", action="store_true", help="write the table of tests/defects/README.md instead"
    )
    given = parser.parse_args()
    if given.table:
        write_block()
        return
    with tempfile.TemporaryDirectory(prefix="gnnhpc-defects-") as folder:
        planting = Planting(Path(folder))
        wanted = [n for n, k in kinds().items() if given.only is None or given.only in f"{k} {n}"]
        rows = [planting.row(name) for name in wanted]
        print("\n".join(print_rows(rows)))
        if given.only is not None:
            for row in rows:
                for outcome in (row.run, row.verify):
                    print(*(outcome.complaints if outcome else ()), sep="\n")


if __name__ == "__main__":
    main()
