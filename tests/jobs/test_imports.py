"""Login nodes: no command that only looks or submits brings torch in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cluster.launch import Launch
from jobs.folder.run_folder import create_run_folder
from jobs.spec.planning import plan

HEAVY = ("torch", "torch_geometric", "numpy.linalg", "pandas", "matplotlib")


def modules_after(arguments: list[str], cwd: Path, ends_with: int = 0) -> set[str]:
    """Names of the modules a command has loaded when it ends with that status."""
    code = (
        "import sys; from jobs.cli import main; status = main(sys.argv[1:]); "
        "print('\\n'.join(sys.modules), file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == ends_with, done.stderr
    return set(done.stderr.split())


COMMANDS = {
    "--help": ["--help"],
    "submit": ["submit", "quickstart", "--dry-run"],
    "status": ["status", "run", "--cost"],
    "list": ["list", "--runs", "."],
    "logs": ["logs", "run", "gat-seq:0", "--follow"],
    "clean": ["clean", "run"],
    "schema": ["schema", "sweep"],
}
# No cell of the run is done.
ENDS_WITH = {"status": 1, "logs": 1}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_on_a_login_node_imports_torch(command: str, tmp_path: Path) -> None:
    spec = Path("jobs/sweeps/quickstart.yaml").resolve()
    create_run_folder(plan(spec), tmp_path / "run", Launch())
    loaded = modules_after(COMMANDS[command], tmp_path, ends_with=ENDS_WITH.get(command, 0))
    assert "jobs.cli" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_help_loads_nothing_of_the_work(tmp_path: Path) -> None:
    loaded = modules_after(["--help"], tmp_path)
    assert loaded.isdisjoint(
        ("submitit", "yaml", "jinja2", "gnnhpc.experiment.experiment", "jobs.spec.sweep")
    )


def test_the_api_is_what_the_commands_use() -> None:
    import jobs

    for name in jobs.__all__:
        assert callable(getattr(jobs, name))
    with pytest.raises(AttributeError):
        _ = jobs.nothing
