"""Layout, micro-batches and rank of a step log, from its file name."""

from __future__ import annotations

import re
from typing import NamedTuple

from gnnhpc.core.layout import Layout


class Setting(NamedTuple):
    """What a log was measured with; None where nobody says so."""

    layout: Layout | None = None
    microbatches: int | None = None
    rank: int | None = None


def setting_from_name(name: str) -> Setting:
    """The setting in a name such as `pipe_0_micro5_stage2.csv`."""
    stem = name.rpartition(".")[0] or name
    layout = None
    stages, replicas = _number_in(r"stages?_?(\d+)", stem), _number_in(r"replicas?_?(\d+)", stem)
    # Spaces for underscores, except in dp2_pp2, which is the layout dp2-pp2.
    spaced = re.sub(r"(dp\d+)_(pp\d+)", r"\1-\2", stem.lower()).replace("_", " ")
    spelled = re.search(r"(?<![a-z0-9])((?:dp\d+-)?pp\d+|dp\d+|seq)(?![a-z0-9])", spaced)
    if stages or replicas:
        layout = Layout(replicas or 1, stages or 1)
    elif spelled:
        layout = Layout.parse(spelled[1])
    microbatches = _number_in(r"micro(?:batche?s?)?_?(\d+)", stem) or _number_in(
        r"(?<![a-z])m(\d+)", stem
    )
    if layout == Layout() and microbatches is None:
        microbatches = 1
    return Setting(layout, microbatches, _number_in(r"(?:pipe|rank)_?(\d+)", stem, zero=True))


def _number_in(pattern: str, text: str, *, zero: bool = False) -> int | None:
    match = re.search(pattern, text.lower())
    number = int(match[1]) if match else None
    return number if number or zero else None
