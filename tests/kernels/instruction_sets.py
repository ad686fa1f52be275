"""The kernels' tests under other instruction sets, other orders of sums, other numbers of threads.

    python -m tests.kernels.instruction_sets

A kernel, torch and MKL each choose code by the processor they find, so that one machine shows one
choice in many. Here the choices are forced, each setting in a process of its own. A setting that
this machine cannot have is a line in the table that says why.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gnnhpc.kernels import compile as compiling

ROOT = Path(__file__).parents[2]
TESTS = ("tests/kernels", "tests/models")
NO_OPENMP, NO_COMPILER, OWN = "native without OpenMP", "none", "own choice"
LIMIT_S = 900.0
CHECK = """
import sys, pytest, torch
from gnnhpc.kernels.compile import kernel_traits, load_kernel
threads, capability, traits = sys.argv[1:4]
found = load_kernel("aggregate") and kernel_traits("aggregate")
assert torch.get_num_threads() == int(threads), torch.get_num_threads()
assert capability in ("", torch.backends.cpu.get_cpu_capability())
assert str(found) == traits, found
raise SystemExit(pytest.main(["-q", "-p", "no:cacheprovider", "--no-header", *sys.argv[4:]]))
"""


class Setting(NamedTuple):
    """What a run of the tests is forced to use."""

    kernels: str
    """A compiler's `-march=`, or one of the two above."""
    torch: str
    """`ATEN_CPU_CAPABILITY`: which of its compiled forms torch takes."""
    mkl: str
    """`MKL_CBWR`: which code path MKL takes, so in which order it adds."""
    threads: int


class Outcome(NamedTuple):
    setting: Setting
    verdict: str
    """"passed", "FAILED" or "not here"."""
    summary: str
    output: str = ""


SETTINGS = (
    Setting("x86-64", "default", "COMPATIBLE", 1),
    Setting("x86-64-v2", "avx2", "AVX2", 3),
    Setting("x86-64-v3", "default", OWN, 2),
    Setting("x86-64-v4", OWN, "COMPATIBLE", 3),
    Setting(compiling.NATIVE, "avx2", "AVX2", 2),
    Setting(compiling.NATIVE, OWN, OWN, 3),
    Setting(NO_OPENMP, "default", "AVX2", 3),
    Setting(NO_COMPILER, OWN, "COMPATIBLE", 2),
    Setting(NO_COMPILER, "default", "AVX2", 1),
)
"""Each value of one meets several of the others."""


def run_setting(setting: Setting, folder: Path, tests: Sequence[str] = TESTS) -> Outcome:
    """The tests under one setting; `folder` keeps what is built for the others."""
    is_x86 = platform.machine() == "x86_64"
    if missing := compiling.lacking(setting.kernels):
        return Outcome(setting, "not here", f"this processor lacks {', '.join(missing)}")
    if not is_x86 and setting.torch == "avx2":
        return Outcome(setting, "not here", f"no AVX2 on {platform.machine()}")
    compiler = next(filter(None, map(shutil.which, compiling.COMPILERS)), None)
    if compiler is None and setting.kernels != NO_COMPILER:
        return Outcome(setting, "not here", f"no compiler ({', '.join(compiling.COMPILERS)})")
    traits = {compiling.NATIVE: "", NO_OPENMP: " without OpenMP", NO_COMPILER: "None"}
    capability = "" if setting.torch == OWN or not is_x86 else setting.torch.upper()
    expected = traits.get(setting.kernels, f" -march={setting.kernels}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", CHECK, str(setting.threads), capability, expected, *tests],
            cwd=ROOT,
            env=environment(setting, folder, compiler),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(setting, "FAILED", f"not done after {LIMIT_S:g} s")
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    summary = lines[-1].strip("= ") if lines else f"exit status {done.returncode}"
    return Outcome(setting, "FAILED" if done.returncode else "passed", summary, done.stdout)


def environment(setting: Setting, folder: Path, compiler: str | None) -> dict[str, str]:
    """The variables of a process that runs the tests under `setting`."""
    forced = (compiling.ARCHITECTURE_VARIABLE, "ATEN_CPU_CAPABILITY", "MKL_CBWR", "CXX")
    found = {name: value for name, value in os.environ.items() if name not in forced}
    found |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(setting.threads))
    # As many threads as requested, however few cores; they sleep where others need the core.
    found |= {"OMP_DYNAMIC": "false", "MKL_DYNAMIC": "false", "OMP_WAIT_POLICY": "passive"}
    for name, value in (("ATEN_CPU_CAPABILITY", setting.torch), ("MKL_CBWR", setting.mkl)):
        if value != OWN:
            found[name] = value
    cache = folder / re.sub(r"\W+", "-", setting.kernels)
    cache.mkdir(mode=0o700, exist_ok=True)
    found["GNNHPC_KERNEL_CACHE"] = str(cache)
    if setting.kernels == NO_COMPILER:
        found["PATH"] = str(cache)
    elif setting.kernels == NO_OPENMP:
        # The machine's compiler behind a script that knows no OpenMP, as some compilers do not.
        path = cache / "c++-without-openmp"
        path.write_text(
            "#!/bin/sh\n"
            'case " $* " in *" -fopenmp "*) echo "error: no OpenMP" >&2; exit 1;; esac\n'
            f'exec "{compiler}" "$@"\n'
        )
        path.chmod(0o755)
        found["CXX"] = str(path)
    else:
        found[compiling.ARCHITECTURE_VARIABLE] = setting.kernels
    return found


def main() -> int:
    """0 when no setting failed."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="gnnhpc-kernels-") as folder:
        for setting in SETTINGS:
            outcome = run_setting(setting, Path(folder))
            kernels, torch, mkl, threads = setting
            line = f"{kernels:22} {torch:11} {mkl:11} {threads:>3}  {outcome.verdict:9}"
            print(line, outcome.summary, flush=True)
            if outcome.verdict == "FAILED":
                failed.append(f"\n{line}\n{outcome.output}")
    print(*failed, sep="\n")
    print(f"{len(SETTINGS)} settings, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
