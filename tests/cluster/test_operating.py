"""What a user does at the login node; none of these jobs starts."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.cluster import config
from tests.cluster.runs import TINY_GAT, User, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SEQ = TINY_GAT | {"layouts": ["seq"], "microbatches": [1]}
CLOSED = {"partition": "closed"}


def shown(user: User, job: str) -> str:
    return user.cluster.run("scontrol", "show", "job", job).stdout


def test_a_site_file_from_what_the_cluster_says_fits_it(user: User) -> None:
    done = user.jobs("site", "init", "--out", "made.yaml")
    assert done.stdout.startswith("wrote made.yaml; next: python -m jobs site check")
    assert "    partition: main\n" in (user.home / "made.yaml").read_text()
    fits = user.jobs("site", "check", "--site-file", "made.yaml").stdout
    assert fits.startswith("site gnnhpc-test, from made.yaml\n")
    assert fits.endswith("fits; next: python -m jobs submit SPEC.yaml --paired\n")
    for settings, words in (
        ({"partition": "nosuch"}, "Invalid partition name"),
        ({"account": "nosuch"}, "Invalid account"),
        ({"mem": "900G"}, "node configuration is not available"),
        ({"time": "2:00:00"}, "time: found 2:00:00; allowed: at most 60 minutes"),
    ):
        wrong = user.jobs("site", "check", *user.site(settings), check=False)
        assert (wrong.returncode, "does not fit: " in wrong.stdout) == (1, True)
        assert words in wrong.stdout


def test_waiting_cells_have_slurms_reason_and_are_cancelled_and_rerun(user: User) -> None:
    site = CLOSED | {"exclusive": True, "mem": "100M", "slurm": {"nice": 7, "no-kill": True}}
    run = user.submit([SEQ | {"repeats": 4}], name="waits", site=site | {"max_parallel": 2})
    job = run.job("gat-seq")
    assert user.cluster.run("squeue", "-h", "-j", job, "-o", "%i|%j").stdout.strip() == (
        f"{job}_[0-3%2]|gat-seq@waits"
    )
    words = shown(user, job)
    for word in ("OverSubscribe=NO", "MinMemoryNode=100M", "Nice=7", "TimeLimit=00:10:00"):
        assert word in words
    reasons = {(cell["state"], cell["detail"]) for cell in run.status().values()}
    assert reasons <= {("pending", "PartitionDown"), ("pending", "")}
    for command, words in (
        (("rerun", "--index", "1"), "gat-seq 1, which is pending"),
        (("clean", "--yes"), "found 4 cells that run, wait or may"),
    ):
        refused = user.jobs(command[0], run.paths.root, *command[1:], check=False)
        assert refused.returncode == 2
        assert words in refused.stderr
    user.jobs("cancel", run.paths.root)
    assert run.jobs() == []
    wait_for(lambda: set(run.states().values()) == {"cancelled"}, "cancelled cells", 30)
    settings = ("time=0:20:00", "mem=300M", "exclude=n1,n3")
    flags = [word for setting in settings for word in ("--slurm", setting)]
    user.jobs("rerun", run.paths.root, "--missing", *flags)
    words = shown(user, run.job("gat-seq"))
    for word in ("TimeLimit=00:20:00", "MinMemoryNode=300M", "ExcNodeList=n[1,3]", "Nice=7"):
        assert word in words
    second = user.submit([SEQ], "--after", str(run.paths.root), name="second", site=CLOSED)
    third = user.submit([SEQ], "--after", second.job("gat-seq"), name="third", site=CLOSED)
    for waits, other in ((second, run), (third, second)):
        dependency = f"Dependency=afterany:{other.job('gat-seq')}_*"
        assert dependency in shown(user, waits.job("gat-seq"))


def test_a_sweep_above_the_limit_of_jobs_goes_in_portions(user: User) -> None:
    run = user.submit([SEQ | {"repeats": 5}], name="portions", site=CLOSED | {"qos": "few"})
    assert f"{config.FEW_JOBS} of 5 tasks are submitted" in run.printed
    assert Counter(run.states().values()) == {"pending": config.FEW_JOBS, "missing": 2}
    refused = user.jobs("rerun", run.paths.root, "--missing", check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    user.jobs("cancel", run.paths.root)
    wait_for(lambda: not run.jobs(), "the cancelled jobs to end")
    user.jobs("rerun", run.paths.root, "--array", "gat-seq", "--index", "3-4")
    assert len(run.jobs()) == 2


def test_a_refused_submission_leaves_nothing(user: User) -> None:
    run = user.submit([SEQ], name="refused", site={"partition": "nosuch"}, check=False)
    assert "Invalid partition name" in run.printed
    assert not run.paths.root.exists()
