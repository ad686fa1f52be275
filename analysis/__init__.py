"""Makes tables, figures and reports of run folders; imports only the torch-free part of gnnhpc.

import analysis
run = analysis.load_run("runs/quickstart")
analysis.summarize(run).table
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.load.run_data import RunData, load_run
    from analysis.summary.summary_table import Summary, summarize

__all__ = ["RunData", "Summary", "load_run", "summarize"]


def __getattr__(name: str) -> Any:
    """Import pandas only when a name is used, so that `--help` stays quick."""
    import importlib

    homes = {
        "RunData": "analysis.load.run_data",
        "load_run": "analysis.load.run_data",
        "Summary": "analysis.summary.summary_table",
        "summarize": "analysis.summary.summary_table",
    }
    if name not in homes:
        raise AttributeError(f"module 'analysis' has no attribute {name!r}")
    return getattr(importlib.import_module(homes[name]), name)
