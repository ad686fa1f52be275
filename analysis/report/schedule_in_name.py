"""Where a schedule with weights apart is one in name alone, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.summary.settings_in_words import settings_in_words, varying_settings
from analysis.summary.split_backward import LEAST_SHARE

if TYPE_CHECKING:
    import pandas as pd

_IN_NAME = {
    "zero-bubble": "zero-bubble is 1F1B there in all but name, and does not pay",
    "zbv": "zbv can pay there by its two parts a stage alone",
}
"""What it means, by schedule."""


def zero_bubble_in_name(summary: pd.DataFrame) -> tuple[str, ...]:
    """A sentence for each model and data whose gradients of weights take hardly any time apart."""
    if summary.empty:
        return ()
    few = summary[summary["weights_share"] < LEAST_SHARE]
    varied = [
        name for name in varying_settings(summary) if name not in ("schedule", "virtual_stages")
    ]
    lines = []
    for (model, data), rows in few.groupby(["model", "data"], sort=False):
        where = [
            ", ".join(filter(None, (_place(row), settings_in_words(row, varied))))
            for row in rows.to_dict("records")
        ]
        told = set(rows["schedule"])
        means = "; ".join(words for schedule, words in _IN_NAME.items() if schedule in told)
        most = rows["weights_share"].max()
        lines.append(
            f"Model {model} on {data} ({'; '.join(dict.fromkeys(where))}): gradients of weights "
            f"apart took {most:.1%} of backward at most, as its layers compute both halves in one. "
            f"So {means}."
        )
    return tuple(lines)


def _place(row: dict[Any, Any]) -> str:
    count = row["microbatches"]
    return f"{row['layout']}, {count} micro-batch{'' if count == 1 else 'es'}"
