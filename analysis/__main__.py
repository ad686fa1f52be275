"""`python -m analysis`: reports of runs, and tables of other programs' logs."""

import sys
from pathlib import Path
from runpy import run_path

if __name__ == "__main__":
    # By its path: the gnnhpc that an import would find may be somebody else's.
    run_path(str(Path(__file__).parents[1] / "gnnhpc/core/python_path.py"))["exit_if_mixed"]()

    from analysis.cli import main

    sys.exit(main())
