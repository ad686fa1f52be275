"""Where the zero-bubble schedule is one in name alone, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.summary.varying_settings import settings_in_words, varying_settings

if TYPE_CHECKING:
    import pandas as pd

LEAST_SHARE = 0.05
"""Of backward: with less of it to put where a stage waits, it waits as under 1F1B."""


def zero_bubble_in_name(summary: pd.DataFrame) -> tuple[str, ...]:
    """A sentence for each model and data whose gradients of weights take hardly any time apart."""
    if summary.empty:
        return ()
    few = summary[summary["weights_share"] < LEAST_SHARE]
    varied = [name for name in varying_settings(summary) if name not in ("schedule", "parts")]
    lines = []
    for (model, data), rows in few.groupby(["model", "data"], sort=False):
        where = [
            ", ".join(filter(None, (_place(row), settings_in_words(row, varied))))
            for row in rows.to_dict("records")
        ]
        most = rows["weights_share"].max()
        lines.append(
            f"Model {model} on {data} ({'; '.join(where)}): gradients of weights apart took "
            f"{most:.1%} of backward at most, as its layers compute both halves in one. So "
            "zero-bubble is 1F1B there in all but name, and does not pay."
        )
    return tuple(lines)


def _place(row: dict[Any, Any]) -> str:
    count = row["microbatches"]
    return f"{row['layout']}, {count} micro-batch{'' if count == 1 else 'es'}"
