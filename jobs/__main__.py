"""`python -m jobs`: submit sweeps, show their status, rerun or cancel cells."""

import sys

from jobs.cli import main

if __name__ == "__main__":
    sys.exit(main())
