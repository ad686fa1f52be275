"""Features kept in half precision: they are computed with in single, which every half is."""

from __future__ import annotations

import torch
from torch import Tensor


def computed_dtype(features: Tensor) -> torch.dtype:
    """The precision in which features are computed with."""
    return torch.float32 if features.dtype == torch.float16 else features.dtype


def computed(features: Tensor) -> Tensor:
    """Features in the precision in which they are computed with."""
    return features.to(computed_dtype(features))
