"""The sentences of a report that are the same for every run, from templates/texts.yaml."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Any

import yaml


@functools.cache
def texts() -> dict[str, Any]:
    """Advice by flag, bullets on statistics, and title and notes by table."""
    source = files("analysis") / "templates" / "texts.yaml"
    found: dict[str, Any] = yaml.safe_load(source.read_text(encoding="utf-8"))
    return found


def advice_of(flag: str, verdict: str = "suspect") -> str:
    """The line for a flag, by its name or else by its verdict."""
    found = texts()
    name = "inconclusive" if verdict == "inconclusive" else flag
    return str(found["advice"].get(name) or found["invalid" if verdict == "invalid" else "other"])
