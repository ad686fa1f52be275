"""Numbers of bytes as people read them."""

from __future__ import annotations


def format_size(size: int | None) -> str:
    """Bytes as 512 B, 3.4 MiB, 120 GiB; `unknown` for None."""
    if size is None:
        return "unknown"
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value / 1024:.3g} TiB"
