"""What a running cell tells a person, and what it says of the code and machine it runs on."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from gnnhpc.records import provenance
from gnnhpc.training.progress_line import progress_reporter
from tests.check.test_audit import record
from tests.tools.cells import gat


def test_rank_0_speaks_at_once_and_at_the_last_step(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_reporter(gat(train_steps=1), rank=0) as report:
        report(record())
        report(record("test"))
    first, second = capsys.readouterr().out.splitlines()
    assert first == "train step 1 of 1: 0.0000 s"
    assert second == "test step 1: 0.0000 s"


def test_steps_in_quick_succession_are_not_all_told(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_reporter(gat(train_steps=99), rank=0) as report:
        for _ in range(50):
            report(record())
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_other_ranks_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_reporter(gat(), rank=1) as report:
        report(record())
    assert capsys.readouterr().out == ""


def test_the_commit_is_this_checkouts() -> None:
    commit = provenance.git_commit()
    if commit is not None:
        assert re.fullmatch(r"[0-9a-f]{40}(\+dirty)?", commit)


def test_versions_name_what_the_numbers_depend_on() -> None:
    assert {"python", "torch", "numpy", "gnnhpc"} <= provenance.versions().keys()


def test_all_processes_of_one_checkout_have_one_digest() -> None:
    code = "from gnnhpc.records.provenance import code_digest; print(code_digest())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == provenance.code_digest()


def test_a_process_knows_how_long_it_has_lived() -> None:
    code = (
        "import time; time.sleep(0.3); "
        "from gnnhpc.records.provenance import seconds_since_process_start as age; print(age())"
    )
    young = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(young.stdout) >= 0.29
    assert provenance.seconds_since_process_start() >= float(young.stdout)


def test_the_machine_says_what_it_is() -> None:
    machine = provenance.machine()
    assert machine["cpus"] == len(os.sched_getaffinity(0))
    assert machine["cpu_model"]
