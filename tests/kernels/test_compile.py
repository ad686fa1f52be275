"""Kernels are built once, safely, and their absence has a reason."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gnnhpc.kernels import compile as build
from gnnhpc.kernels.dispatch import address

SOURCE = 'extern "C" int answer() { return 42; }\n'
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, build.COMPILERS)), reason="no C++ compiler"
)


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of kernels with one in it, and an empty cache beside it."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "toy.cpp").write_text(SOURCE)
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setenv("GNNHPC_KERNEL_CACHE", str(tmp_path / "cache"))
    for name in ("GNNHPC_KERNELS", "CXX", build.ARCHITECTURE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    build.load_kernel.cache_clear()
    yield folder
    build.load_kernel.cache_clear()


def answer() -> int:
    build.load_kernel.cache_clear()
    library = build.load_kernel("toy")
    assert isinstance(library, ctypes.CDLL), build.kernel_status("toy")
    return int(library.answer())


@needs_compiler
def test_a_kernel_is_built_once_for_each_source_header_and_processor(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("toy-*.so")}

    assert answer() == 42
    first = built()
    assert answer() == 42
    assert built() == first
    assert build.kernel_status("toy") == build.compiler_version(build.find_compiler())
    (kernels / "part").mkdir()
    (kernels / "toy.cpp").write_text('#include "part/one.h"\n' + SOURCE.replace("42", "ONE"))
    (kernels / "part/one.h").write_text('#include "two.h"\n#define ONE TWO + 1\n')
    for number in (1, 2):
        (kernels / "part/two.h").write_text(f"#define TWO {number}\n")
        assert answer() == number + 1
    plain = "x86-64" if platform.machine() == "x86_64" else "armv8-a"
    monkeypatch.setenv(build.ARCHITECTURE_VARIABLE, plain)
    assert answer() == 3
    assert build.kernel_status("toy").endswith(f" -march={plain}")
    assert len(built()) == 4


NATIVE = {build.ARCHITECTURE_VARIABLE: "native"}


@needs_compiler
@pytest.mark.parametrize(
    ("source", "env", "reason"),
    [
        ("this is no C++\n", NATIVE, "error"),
        ('#include "absent.h"\n', NATIVE, "absent.h"),
        (SOURCE, {build.ARCHITECTURE_VARIABLE: "no-such-processor"}, "no-such-processor"),
        (SOURCE, {"PATH": "/nowhere"}, "none: no C++ compiler found"),
        (SOURCE, {"GNNHPC_KERNELS": "off"}, "none: switched off by GNNHPC_KERNELS=off"),
    ],
)
def test_what_is_not_compiled_has_a_reason(
    source: str,
    env: dict[str, str],
    reason: str,
    kernels: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (kernels / "toy.cpp").write_text(source)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert build.load_kernel("toy") is None
    assert reason in build.kernel_status("toy")


@needs_compiler
def test_a_cache_that_others_can_write_to_is_not_used(kernels: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    assert build.cache_folder() is None
    assert answer() == 42
    assert list(cache.iterdir()) == []


@needs_compiler
def test_processes_that_start_together_compile_once(kernels: Path, tmp_path: Path) -> None:
    log, compiler = tmp_path / "compiled", tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/sh\ncase "$1" in --version) ;; *) echo x >> "{log}"; sleep 0.3;; esac\n'
        f'exec "{build.find_compiler()}" "$@"\n'
    )
    compiler.chmod(0o755)
    program = (
        "from pathlib import Path\n"
        "from gnnhpc.kernels import compile as build\n"
        f"build.SOURCES = Path({str(kernels)!r})\n"
        "library = build.load_kernel('toy')\n"
        "raise SystemExit(0 if library is not None and library.answer() == 42 else 1)\n"
    )
    environment = os.environ | {"CXX": str(compiler)}
    ranks = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(4)]
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0, 0]
    assert log.read_text() == "x\n"
    assert not list((tmp_path / "cache").glob("*.tmp"))


def test_a_kernel_gets_no_address_of_another_device() -> None:
    assert address(torch.ones(3)) is not None
    with pytest.raises(AssertionError, match="found a tensor of meta"):
        address(torch.ones(3, device="meta"))
