"""`python -m analysis`: reports of runs, and tables of other programs' logs."""

import sys

from analysis.cli import main

if __name__ == "__main__":
    sys.exit(main())
