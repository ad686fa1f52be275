"""`python -m gnnhpc`: runs one experiment, or compares it with its reference."""

import sys

from gnnhpc.core.errors import report_errors


@report_errors
def main() -> int:
    """Check the code before the commands are imported from it."""
    from gnnhpc.records.code_snapshot import check_running_code

    check_running_code()
    from gnnhpc.cli import main as run_command

    return run_command()


if __name__ == "__main__":
    sys.exit(main())
