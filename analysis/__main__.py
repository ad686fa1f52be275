"""`python -m analysis`: reports of runs, tables of other programs' logs, Chrome traces."""

import sys

from analysis.cli import main

if __name__ == "__main__":
    sys.exit(main())
