"""A real Slurm on this machine, as the tests start it, to try sweeps on.

It has four nodes, and needs root, slurm-wlm, slurmdbd, munge and mariadb-server.

python -m tests.cluster start
eval "$(python -m tests.cluster env)"       # what a shell sets to use it
python -m jobs submit quickstart --cluster slurm
python -m tests.cluster stop                # ends it, and removes its folder
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path

from tests.cluster import slurm

ROOT = Path(tempfile.gettempdir()) / f"{slurm.PREFIX}play"


def main() -> int:
    try:
        match sys.argv[1:]:
            case ["start"]:
                slurm.start(ROOT)
                print('started; now: eval "$(python -m tests.cluster env)"')
            case ["stop"]:
                slurm.stop(ROOT)
            case ["env"]:
                print(f"export SLURM_CONF={shlex.quote(str(ROOT / 'slurm.conf'))}")
            case _:
                print(__doc__)
                return 2
    except (slurm.ClusterError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
