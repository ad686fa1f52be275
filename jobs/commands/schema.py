"""`schema`: of the files that users write."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gnnhpc.core.errors import EXIT_DONE

EPILOG = "Example: python -m jobs schema sweep > sweep.schema.json"


class Written(StrEnum):
    sweep = "sweep"
    site = "site"


def schema(what: Annotated[Written, typer.Argument(help="Of sweeps, or of site files.")]) -> int:
    """Print the JSON Schema of sweeps or site files, by which editors complete and check them.

    The first line of a file names it: # yaml-language-server: $schema=sweep.schema.json
    """
    import json

    from jobs.printing.json_schema import site_schema, sweep_schema

    found = sweep_schema() if what == Written.sweep else site_schema()
    print(json.dumps(found, indent=1, ensure_ascii=False))
    return EXIT_DONE
