"""A check that flags a cell, as a row of `RunData.checks`."""

from __future__ import annotations

from typing import NamedTuple

DAMAGED, EQUIVALENT, NOT_COMPARABLE = "damaged", "equivalent-cells", "not-comparable"
"""Names of the checks that loading adds to those of the results."""


class Raised(NamedTuple):
    cell: str
    name: str
    verdict: str
    detail: str
