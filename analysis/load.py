"""Another name for analysis.runs."""

from analysis.runs import Run, load

__all__ = ["Run", "load"]
