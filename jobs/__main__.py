"""`python -m jobs`: submit sweeps, look after them, run parts of them again."""

import sys

from jobs.cli import main

if __name__ == "__main__":
    sys.exit(main())
