"""Tests of a mutant, in a forked process that has the changed file instead of the real one."""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.machinery
import importlib.util
import math
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[2]
LIBRARIES = ("numpy", "pandas", "pydantic", "scipy.stats", "torch", "torch_geometric.nn")
"""Imported once, before any fork; nothing of the project may be."""
PASSED, FAILED = 0, 1
MEMORY_BYTES = 16 * 2**30
WAITS_S = 600
"""When a trial ends that computes nothing, but waits, as for an answer that never comes."""


class _Finder(importlib.machinery.SourceFileLoader):
    """Finds and loads one module, from a changed tree."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        super().__init__(name, str(path))
        self.tree = tree

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.tree, self.path, "exec")


def prepare() -> None:
    """Import what every trial needs; the process must stay free of threads, so that it can fork."""
    for name in LIBRARIES:
        importlib.import_module(name)
    # What is here now is never collected; to look for that would take most of a trial.
    gc.collect()
    gc.freeze()
    settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        # The first failing example will do, however large it is.
        phases=(Phase.explicit, Phase.generate),
        report_multiple_bugs=False,
    )
    settings.load_profile("mutants")


def try_mutant(
    path: Path, tree: ast.Module | None, tests: Sequence[str], limit_s: float
) -> tuple[str, float]:
    """`killed`, `survived` or `timeout`, and the CPU seconds; without a tree the file is as it is.

    `limit_s` is of CPU time, which a busy machine does not lengthen. Raises RuntimeError if there
    were no tests to run.
    """
    child = os.fork()
    if child == 0:
        _run(path, tree, tests, math.ceil(limit_s))
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise RuntimeError(f"no tests in {', '.join(tests)}")
    verdict = "survived" if code == PASSED else "killed"
    if code == -signal.SIGXCPU:
        verdict = "timeout"
    return verdict, usage.ru_utime + usage.ru_stime


def _run(path: Path, tree: ast.Module | None, tests: Sequence[str], limit_s: int) -> None:
    code = FAILED
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
        signal.alarm(WAITS_S)
        if tree is not None:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            sys.meta_path.insert(0, _Finder(name, path, tree))
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:timeout", "--no-header"]
        options += ["-W", "ignore", "-o", "addopts=", "--assert=plain"]
        options += ["-p", "no:unraisableexception", "-p", "no:faulthandler"]
        code = int(pytest.main([*options, *tests]))
    finally:
        os._exit(code)
