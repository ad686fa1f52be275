"""What `gnnhpc verify` prints of ranks that failed: the verdict or the error, and no more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gnnhpc.validation import verify_command

TRACEBACK = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer\n"


@pytest.mark.parametrize(
    ("first", "status", "printed"),
    [
        ("", 1, ""),
        ("noise\nerror: model x: found y\n", 2, "error: model x: found y\n"),
        ("Traceback: a\n", 1, "Traceback: a\n" + TRACEBACK),
        ("", -9, TRACEBACK),
    ],
)
def test_the_traceback_of_another_rank_does_not_follow_a_clear_line(
    first: str, status: int, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = []
    for number, (text, ends) in enumerate([(first, status), (TRACEBACK, 1)]):
        errors = tmp_path / f"{number}.err"
        errors.write_text(text)
        code = f"exit {ends}" if ends > 0 else "kill -KILL $$"
        process = subprocess.Popen(["sh", "-c", code])
        process.wait()
        ranks.append(verify_command._Rank(process, errors))
    verify_command._wait(ranks)
    assert capsys.readouterr().err == printed
