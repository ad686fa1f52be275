"""A real Slurm on this machine, as the tests start it: to try sweeps on."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from tests.cluster import slurm

EPILOG = """\
start   its daemons and four nodes on this machine; needs root, and slurm-wlm slurmdbd munge
        mariadb-server
env     what a shell sets to use it
stop    ends it, and removes its folder

Example:
  python -m tests.cluster start
  eval "$(python -m tests.cluster env)"
  python -m jobs submit quickstart --cluster slurm
  python -m tests.cluster stop
"""
ROOT = Path(tempfile.gettempdir()) / f"{slurm.PREFIX}play"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("start", "stop", "env"))
    action = parser.parse_args().action
    try:
        if action == "start":
            slurm.start(ROOT)
            print('started; now: eval "$(python -m tests.cluster env)"')
        elif action == "stop":
            slurm.stop(ROOT)
        else:
            print(f"export SLURM_CONF={shlex.quote(str(ROOT / 'slurm.conf'))}")
    except (slurm.ClusterError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
