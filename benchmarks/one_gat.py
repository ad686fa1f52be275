"""GAT's training epoch against other libraries', for the table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from benchmarks.bench_gat import GOALS, contestants, interleaved, pubmed_shaped


def in_turns(rounds: int, threads: int) -> dict[str, Any]:
    """Seconds an epoch of each contestant in each round, and what was hoped for."""
    torch.set_num_threads(threads)
    seconds = interleaved(contestants(pubmed_shaped()), rounds)
    return {"seconds": seconds, "goals": [asdict(goal) for goal in GOALS]}
