"""Results changed as if they had been written so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnnhpc.core.versioned_json import with_digest
from gnnhpc.records.result_file import NOT_DIGESTED


def rewrite_result(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """`change` takes what stands in a `result.json` and changes it in place."""
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(with_digest(raw, NOT_DIGESTED)))
