"""`python -m gnnhpc`: one experiment by hand, or its gradients against the sequential twin."""

import sys

from gnnhpc.cli import main
from gnnhpc.core.python_path import exit_if_mixed

if __name__ == "__main__":
    exit_if_mixed()
    sys.exit(main())
