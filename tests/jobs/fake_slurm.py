"""Slurm's commands as scripts on PATH: they keep a queue in files, and fail as a test asks."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

SEPARATOR = "\x1f"
_SBATCH = """\
echo "$*" >>"$home/sbatch.calls"
fault=$(head -n 1 "$home/sbatch.faults" 2>/dev/null)
[ -z "$fault" ] || sed -i 1d "$home/sbatch.faults"
case $fault in fail:*) echo "sbatch: error: ${fault#*:}" >&2; exit 1;; esac
job=$(($(cat "$home/last" 2>/dev/null || echo 100) + 1)); echo $job >"$home/last"
tasks= comment=
for word in "$@"; do
    case $word in --array=*) tasks=_[${word#*=}];; --comment=*) comment=${word#*=};; esac
    script=$word
done
name=$(sed -n 's/^#SBATCH --job-name=//p' "$script" | tr -d "'")
printf '%s\\x1f%s\\x1f%s\\x1f%s\\x1f%s\\x1f%s\\n' \\
    "$job$tasks" PENDING None "$name" "$script" "$comment" >>"$home/queue"
case $fault in lose:*) echo "sbatch: error: ${fault#*:}" >&2; exit 1;; esac
echo "Submitted batch job $job"
"""
_PROGRAMS = {
    "sbatch": _SBATCH,
    "srun": "exit 0",
    "squeue": 'cat "$home/queue" 2>/dev/null; exit 0',
    "sacct": 'cat "$home/accounts" 2>/dev/null; exit 0',
    "scancel": (
        'echo "$*" >>"$home/scancel.calls"\n'
        'for job in "$@"; do sed -i "/^${job}[_\\x1f]/d" "$home/queue"; done'
    ),
    "scontrol": "echo 'MaxJobCount             = 1000'",
    "sinfo": 'cat "$home/partitions" 2>/dev/null; exit 0',
}


def account(
    task: str, state: str = "COMPLETED", *, array: str = "gat-seq", seconds: int = 10
) -> tuple[str, ...]:
    """One row of sacct: a task or step with two CPUs."""
    return (task, state, f"{array}@run", str(seconds), "2")


@dataclass(frozen=True)
class FakeSlurm:
    """A folder with the commands and the files that they read and write."""

    home: Path

    @classmethod
    def install(cls, home: Path) -> FakeSlurm:
        (home / "bin").mkdir(parents=True)
        for name, body in _PROGRAMS.items():
            script = home / "bin" / name
            lines = ["#!/bin/bash", f"home={shlex.quote(str(home))}"]
            # A command fails with the words in its file.
            lines += [
                f'if [ -f "$home/{name}.fails" ]; then cat "$home/{name}.fails" >&2; exit 1; fi'
            ]
            script.write_text("\n".join([*lines, body]) + "\n")
            script.chmod(0o755)
        return cls(home)

    @property
    def path(self) -> str:
        return os.pathsep.join((str(self.home / "bin"), "/usr/bin", "/bin"))

    def fail(self, program: str, words: str = "slurm_load_jobs error: connect failure") -> None:
        """Let each call of a program fail with these words."""
        (self.home / f"{program}.fails").write_text(words + "\n")

    def work(self, program: str) -> None:
        """Let a program work again."""
        (self.home / f"{program}.fails").unlink()

    def next_calls(self, *faults: str) -> None:
        """What the next calls of sbatch do: `fail:WORDS`, or `lose:WORDS` after it submitted."""
        (self.home / "sbatch.faults").write_text("".join(f"{fault}\n" for fault in faults))

    def offer(self, partition: str) -> None:
        """What sinfo prints."""
        (self.home / "partitions").write_text(partition + "\n")

    @property
    def calls(self) -> list[str]:
        """The arguments of each call of sbatch."""
        return self._lines("sbatch.calls")

    @property
    def cancelled(self) -> list[str]:
        return self._lines("scancel.calls")

    @property
    def queue(self) -> list[list[str]]:
        """The fields of each job in the queue."""
        return [line.split(SEPARATOR) for line in self._lines("queue")]

    def set_queue(self, *jobs: list[str]) -> None:
        (self.home / "queue").write_text("".join(SEPARATOR.join(job) + "\n" for job in jobs))

    def set_state(self, state: str, tasks: str | None = None, reason: str = "None") -> None:
        """Give all jobs in the queue a state, and other tasks such as `0`."""
        jobs = []
        for job in self.queue:
            number = job[0].partition("_")[0]
            jobs.append([job[0] if tasks is None else f"{number}_{tasks}", state, reason, *job[3:]])
        self.set_queue(*jobs)

    def set_accounts(self, *rows: tuple[str, ...]) -> None:
        """What sacct prints."""
        (self.home / "accounts").write_text("".join(SEPARATOR.join(row) + "\n" for row in rows))

    def _lines(self, name: str) -> list[str]:
        file = self.home / name
        return file.read_text().splitlines() if file.exists() else []
