"""A digest that a stored file has of its own content, so that a change by hand shows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

DIGEST = "digest"
"""The key that it is stored under."""


def content_digest(raw: Mapping[str, Any], leaving_out: Collection[str] = ()) -> str:
    """SHA-256 of an object's values by key, less those left out and the digest itself."""
    told = {key: each for key, each in raw.items() if key != DIGEST and key not in leaving_out}
    # As it is read back: keys that are numbers become text, which is sorted otherwise.
    told = json.loads(json.dumps(told))
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def with_digest(raw: Mapping[str, Any], leaving_out: Collection[str] = ()) -> dict[str, Any]:
    return {**raw, DIGEST: content_digest(raw, leaving_out)}
