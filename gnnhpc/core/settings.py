"""The base class of all typed settings, and their common types of numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Unknown keys are errors, values never change after checking."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )


# YAML's `yes` must not count as 1.
Whole = Annotated[int, Field(strict=True)]
Positive = Annotated[Whole, Field(ge=1)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
