"""`python -m tests.defects`: plant all defects, print the matrix; `--only WORDS` for some."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.defects.defect import DEFECTS
from tests.defects.matrix import Matrix, print_matrix


def main() -> int:
    """Returns 1 where a defect passes, or is caught otherwise than it is to be."""
    parser = argparse.ArgumentParser(prog="python -m tests.defects", description=__doc__)
    parser.add_argument("--only", metavar="WORDS", default="", help="in a defect's name or class")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gnnhpc-defects-") as folder:
        matrix = Matrix(Path(folder))
        for name, defect in DEFECTS.items():
            if given.only not in f"{defect.kind} {name}":
                continue
            row = matrix.row(name)
            print(row, file=sys.stderr, flush=True)
    print("\n".join(print_matrix(matrix.rows)))
    return int(any(row.named is None for row in matrix.rows))


if __name__ == "__main__":
    sys.exit(main())
