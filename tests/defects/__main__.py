"""`python -m tests.defects`: plant all defects, print the matrix; `--only WORDS` for some."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

from tests.defects.defect import DEFECTS
from tests.defects.running import Row, row_of


def main() -> int:
    """Returns 1 where a defect passes, or is caught otherwise than it is to be."""
    parser = argparse.ArgumentParser(prog="python -m tests.defects", description=__doc__)
    parser.add_argument("--only", metavar="WORDS", default="", help="in a defect's name or class")
    only, rows = parser.parse_args().only, list[Row]()
    chosen = [each for each in DEFECTS.values() if only in f"{each.kind} {each.name}"]
    with tempfile.TemporaryDirectory(prefix="gnnhpc-defects-") as folder:
        for number, defect in enumerate(chosen):
            rows.append(row_of(defect, Path(folder) / str(number)))
            print(rows[-1], file=sys.stderr, flush=True)
    for kind, of_kind in itertools.groupby(rows, lambda row: row.defect.kind):
        print("\n".join((f"-- {kind}", *map(str, of_kind))))
    named = sum(row.named is not None for row in rows)
    print(f"{named} of {len(rows)} defects are named")
    return int(named < len(rows))


if __name__ == "__main__":
    sys.exit(main())
