"""The command `gnnhpc` as a user has it: a script on PATH, whose folder comes first on sys.path."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What an installer writes, less the line for Windows.
SCRIPT = """\
#!{python}
import sys
from gnnhpc.console import main
if __name__ == "__main__":
    sys.exit(main())
"""
# The same, which prints its imported modules to stderr at its end.
TELLING = """\
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
sys.argv[0] = "gnnhpc"
from gnnhpc.console import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Console:
    """Runs commands in one folder, with one script folder first on PATH."""

    scripts: Path
    cwd: Path
    python: str = sys.executable
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_checkout(cls, scripts: Path, cwd: Path) -> Console:
        """A script that finds the packages of this checkout."""
        scripts.mkdir(exist_ok=True)
        script = scripts / "gnnhpc"
        script.write_text(SCRIPT.format(python=sys.executable))
        script.chmod(0o755)
        return cls(scripts, cwd, environment={"PYTHONPATH": str(ROOT)})

    def run(self, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """A command line, `python` being this console's; `extra` goes into the environment."""
        environment = dict(os.environ)
        for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
            environment.pop(name, None)
        environment |= self.environment | extra
        environment["PATH"] = f"{self.scripts}{os.pathsep}{environment['PATH']}"
        command = tuple(self.python if word == "python" else word for word in command)
        return subprocess.run(
            command, cwd=self.cwd, env=environment, capture_output=True, text=True, check=False
        )

    def loaded(self, *arguments: str, **extra: str) -> tuple[str, set[str]]:
        """What `gnnhpc ARGUMENTS` prints, and the names of the modules it imports."""
        done = self.run("python", "-c", TELLING, *arguments, **extra)
        assert done.returncode == 0, done.stderr
        return done.stdout, set(done.stderr.split())
