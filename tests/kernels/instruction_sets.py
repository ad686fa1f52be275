"""The kernels' tests under other instruction sets, other orders of sums, other numbers of threads.

    python -m tests.kernels.instruction_sets [--every]

A kernel, torch and MKL each choose code by the processor they find, so that one machine shows one
choice in many. Here the choices are forced, each setting in a process of its own: every two values
of two different axes meet in some setting (`--every`: all of them do). A setting that this machine
cannot have is a line in the table that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from gnnhpc.kernels import architecture, build
from tests.kernels.pairwise import pairwise_cover

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/models/test_vig_stack.py",
    "tests/kernels/test_aggregate_kernel.py",
    "tests/kernels/test_sample_kernel.py",
    "tests/kernels/test_vig_kernel.py",
    "tests/kernels/test_not_finite.py",
    "tests/models/test_vig_fused.py",
    "tests/models/test_vig_readout.py",
    "tests/models/test_gat_fused.py",
    "tests/models/test_gat.py",
    "tests/models/test_layer_implementations.py",
    "tests/models/test_batchnorm.py",
    "tests/models/test_dropout.py",
)
NO_OPENMP, NO_COMPILER = "native without OpenMP", "none"
OWN_CHOICE = "own choice"
LIMIT_S = 280.0


class Setting(NamedTuple):
    """What a run of the tests is forced to use."""

    kernels: str
    """A compiler's `-march=`, or one of the two above."""
    torch: str
    """`ATEN_CPU_CAPABILITY`: which of its compiled forms torch takes."""
    mkl: str
    """`MKL_CBWR`: which code path MKL takes, so in which order it adds."""
    threads: str

    def expected(self) -> dict[str, object]:
        """What a process under this setting must find (tests.kernels.under_setting)."""
        capability = {"default": "DEFAULT", "avx2": "AVX2"}.get(self.torch)
        traits = "" if self.kernels == architecture.NATIVE else f" -march={self.kernels}"
        if self.kernels == NO_OPENMP:
            traits = " without OpenMP"
        return {
            "threads": int(self.threads),
            "torch": capability if platform.machine() == "x86_64" else None,
            "kernels": None if self.kernels == NO_COMPILER else traits,
        }


@dataclass(frozen=True)
class Outcome:
    """How the tests went; `said` is pytest's last line, or why they did not run."""

    setting: Setting
    verdict: str
    said: str
    output: str = ""


def axes() -> tuple[tuple[str, ...], ...]:
    """The values to try of each field of a Setting, for this kind of processor."""
    threads = ("1", "2", "3")
    others = (architecture.NATIVE, NO_OPENMP, NO_COMPILER)
    if platform.machine() != "x86_64":
        return others, (OWN_CHOICE, "default"), (OWN_CHOICE,), threads
    torch, mkl = (OWN_CHOICE, "avx2", "default"), (OWN_CHOICE, "AVX2", "COMPATIBLE")
    return (*architecture.LEVELS, *others), torch, mkl, threads


def run_settings(
    settings: Iterable[Setting], folder: Path, tests: Sequence[str] = TESTS
) -> Iterator[Outcome]:
    """The tests under each setting, one after another; kernels of one kind are built once."""
    for setting in settings:
        missing = architecture.lacking(setting.kernels)
        if missing:
            yield Outcome(setting, "not here", f"this processor lacks {', '.join(missing)}")
        elif setting.kernels != NO_COMPILER and _compiler() is None:
            yield Outcome(setting, "not here", f"no compiler ({', '.join(build.COMPILERS)})")
        else:
            yield _run(setting, folder, tests)


def _run(setting: Setting, folder: Path, tests: Sequence[str]) -> Outcome:
    command = [sys.executable, "-m", "tests.kernels.under_setting", json.dumps(setting.expected())]
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=ROOT,
            env=environment(setting, folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(setting, "FAILED", f"not done after {LIMIT_S:g} s")
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    said = lines[-1].strip("= ") if lines else f"exit status {done.returncode}"
    verdict = "FAILED" if done.returncode else "passed"
    return Outcome(setting, verdict, said, done.stdout)


def environment(setting: Setting, folder: Path) -> dict[str, str]:
    """The variables of a process that runs the tests under `setting`."""
    forced = (architecture.VARIABLE, "ATEN_CPU_CAPABILITY", "MKL_CBWR", "CXX", "GNNHPC_KERNELS")
    found = {name: value for name, value in os.environ.items() if name not in forced}
    found |= {"OMP_NUM_THREADS": setting.threads, "MKL_NUM_THREADS": setting.threads}
    # As many threads as are asked for, however few cores; they sleep, where others need the core.
    found |= {"OMP_DYNAMIC": "false", "MKL_DYNAMIC": "false", "OMP_WAIT_POLICY": "passive"}
    if setting.torch != OWN_CHOICE:
        found["ATEN_CPU_CAPABILITY"] = setting.torch
    if setting.mkl != OWN_CHOICE:
        found["MKL_CBWR"] = setting.mkl
    cache = folder / re.sub(r"\W+", "-", setting.kernels)
    cache.mkdir(mode=0o700, exist_ok=True)
    found["GNNHPC_KERNEL_CACHE"] = str(cache)
    if setting.kernels == NO_COMPILER:
        found["PATH"] = str(cache)
    elif setting.kernels == NO_OPENMP:
        found["CXX"] = str(_compiler_without_openmp(cache))
    else:
        found[architecture.VARIABLE] = setting.kernels
    return found


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, build.COMPILERS)), None)


def _compiler_without_openmp(folder: Path) -> Path:
    """The machine's compiler behind a script that knows no OpenMP, as some compilers do not."""
    path = folder / "c++-without-openmp"
    path.write_text(
        "#!/bin/sh\n"
        'case " $* " in *" -fopenmp "*) echo "error: no OpenMP" >&2; exit 1;; esac\n'
        f'exec "{_compiler()}" "$@"\n'
    )
    path.chmod(0o755)
    return path


def _line(outcome: Outcome) -> str:
    kernels, torch, mkl, threads = outcome.setting
    return f"{kernels:22} {torch:11} {mkl:11} {threads:>7}  {outcome.verdict:9} {outcome.said}"


def main() -> int:
    """0 when no setting failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", action="store_true", help="all settings, not all pairs")
    given = parser.parse_args()
    chosen = list(product(*axes())) if given.every else pairwise_cover(axes())
    print(f"{'kernels':22} {'torch':11} {'MKL':11} threads  outcome")
    failed = []
    with tempfile.TemporaryDirectory(prefix="gnnhpc-kernels-") as folder:
        for outcome in run_settings(map(Setting._make, sorted(chosen)), Path(folder)):
            print(_line(outcome), flush=True)
            if outcome.verdict == "FAILED":
                failed.append(outcome)
    for outcome in failed:
        print(f"\n{_line(outcome)}\n{outcome.output}")
    print(f"{len(chosen)} settings, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
