"""From records to tables and figures; imports only the torch-free part of gnnhpc.

import analysis
run = analysis.load("runs/quickstart")
analysis.summarise(run)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.records.run import Run, load
    from analysis.summary.summary import summarise

__all__ = ["Run", "load", "summarise"]


def __getattr__(name: str) -> Any:
    """Import pandas only when a name is used, so that `--help` stays quick."""
    import importlib

    homes = {
        "Run": "analysis.records.run",
        "load": "analysis.records.run",
        "summarise": "analysis.summary.summary",
    }
    if name not in homes:
        raise AttributeError(f"module 'analysis' has no attribute {name!r}")
    return getattr(importlib.import_module(homes[name]), name)
