"""`python -m gnnhpc`: one experiment by hand, or its gradients against the sequential twin."""

import sys

from gnnhpc.cli import main

if __name__ == "__main__":
    sys.exit(main())
