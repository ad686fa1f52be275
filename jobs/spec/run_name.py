"""What a run may be called: its name becomes a folder, part of job names and of scripts."""

from __future__ import annotations

import unicodedata

from gnnhpc.core.errors import InputError

MAX_BYTES = 120
_ALLOWED = "a folder name: no slash, %, backslash or line break, no . or - or space at its start"


def check_run_name(name: str, where: str) -> str:
    """The name, unchanged; raises InputError if a folder or a job cannot have it."""
    bad = [c for c in name if c in "/%\\" or unicodedata.category(c).startswith("C")]
    if bad:
        raise InputError(where, None, f"{name!r} with {bad[0]!r}", _ALLOWED)
    if not name or name[0] in ".- " or name != name.strip():
        raise InputError(where, None, repr(name), _ALLOWED)
    if len(name.encode()) > MAX_BYTES:
        raise InputError(
            where, None, f"{len(name.encode())} bytes", f"at most {MAX_BYTES}, it names folders"
        )
    return name
