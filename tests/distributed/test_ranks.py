"""The helper that starts real ranks: values come back, failures and hangs end everyone."""

from __future__ import annotations

import os
import sys
import time

import pytest
import torch
import torch.distributed as dist

from tests.tools.forked import spawn
from tests.tools.ranks import RankError, lease_port, run_ranks


def add_ranks(offset: int) -> tuple[int, float]:
    dist.init_process_group("gloo")
    total = torch.tensor(float(dist.get_rank() + offset))
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(os.environ["RANK"]), total.item()


def fail_on_rank_one() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("planted")
    time.sleep(0.2)


def hang_on_rank_one() -> None:
    if os.environ["RANK"] == "1":
        time.sleep(600)


@pytest.mark.distributed
def test_values_come_back_by_rank() -> None:
    assert spawn(add_ranks, 3, 10) == [(0, 33.0), (1, 33.0), (2, 33.0)]


def test_a_failed_rank_is_named_with_its_traceback() -> None:
    with pytest.raises(RankError, match=r"rank 1: exit 1[\s\S]*ValueError: planted"):
        spawn(fail_on_rank_one, 2)


def test_a_hung_rank_is_killed() -> None:
    with pytest.raises(RankError, match="still running and were killed"):
        spawn(hang_on_rank_one, 2, timeout_s=2.0)


def test_outputs_of_failed_ranks_can_be_looked_at() -> None:
    code = "import os, sys; print(os.environ['RANK']); sys.exit(int(os.environ['RANK']) * 3)"
    outputs = run_ranks([sys.executable, "-c", code], 2, check=False)
    assert [(output.returncode, output.stdout) for output in outputs] == [(0, "0\n"), (3, "1\n")]


def test_no_port_is_leased_twice() -> None:
    with lease_port() as first, lease_port() as second:
        assert first != second
