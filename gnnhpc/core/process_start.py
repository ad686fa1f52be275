"""When a process of this machine began: process ids are used again, a start is not."""

from __future__ import annotations

from pathlib import Path


def process_start_ticks(pid: int) -> int | None:
    """Start of a process of this machine, in clock ticks since boot; None if it does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
    except OSError:
        return None
    # proc(5): start time is field 22, the state field 3, which is the first here; Z and X are dead.
    return None if fields[0] in "ZX" else int(fields[19])
