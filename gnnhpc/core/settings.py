"""The base class of all typed settings, and their common types of numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Unknown keys are errors, values never change after checking."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


MOST_WHOLE = 2**63 - 1
"""Integers of arrays, tables and C have 64 bits."""
MOST_STEPS = 2**31 - 1
"""Steps are counted, and so many that no run ends."""
MOST_SEED = 2**64 - 1
"""torch's generators take no larger one; the key of numbers that draw neighbours has 64 bits."""
MOST_LAYERS = 2_000
"""Of a model: to balance them takes a login node a time that grows with their square."""

# YAML's `yes` must not count as 1.
Whole = Annotated[int, Field(strict=True, le=MOST_WHOLE)]
Positive = Annotated[Whole, Field(ge=1)]
Steps = Annotated[Whole, Field(le=MOST_STEPS)]
Seed = Annotated[int, Field(strict=True, ge=0, le=MOST_SEED)]
Layers = Annotated[Whole, Field(le=MOST_LAYERS)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
