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

from gnnhpc.kernels import compile as build

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
    monkeypatch.setattr(build, "_SOURCES", folder)
    monkeypatch.setenv("GNNHPC_KERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GNNHPC_KERNELS", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv(build.ARCHITECTURE_VARIABLE, raising=False)
    build.load_kernel.cache_clear()
    yield folder
    build.load_kernel.cache_clear()


@needs_compiler
def test_builds_loads_and_reuses(kernels: Path, tmp_path: Path) -> None:
    library = build.load_kernel("toy")
    assert isinstance(library, ctypes.CDLL)
    assert library.answer() == 42
    built = list((tmp_path / "cache").glob("toy-*.so"))
    assert len(built) == 1
    before = built[0].stat().st_mtime_ns
    build.load_kernel.cache_clear()
    assert build.load_kernel("toy") is not None
    assert built[0].stat().st_mtime_ns == before
    assert build.kernel_status("toy") == build.compiler_version(build.find_compiler())


@needs_compiler
def test_another_source_is_another_file(kernels: Path, tmp_path: Path) -> None:
    build.load_kernel("toy")
    (kernels / "toy.cpp").write_text(SOURCE.replace("42", "43"))
    build.load_kernel.cache_clear()
    library = build.load_kernel("toy")
    assert library is not None
    assert library.answer() == 43
    assert len(list((tmp_path / "cache").glob("toy-*.so"))) == 2


@needs_compiler
def test_a_broken_source_is_named(kernels: Path) -> None:
    (kernels / "toy.cpp").write_text("this is no C++\n")
    assert build.load_kernel("toy") is None
    assert "error" in build.kernel_status("toy")


@needs_compiler
def test_another_instruction_set_is_another_file_and_is_recorded(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "#ifdef __AVX__\n#error too new\n#endif\n" + SOURCE
    plain = "x86-64" if platform.machine() == "x86_64" else "armv8-a"
    build.load_kernel("toy")
    assert build.kernel_traits("toy") == ""
    (kernels / "toy.cpp").write_text(source)
    monkeypatch.setenv(build.ARCHITECTURE_VARIABLE, plain)
    build.load_kernel.cache_clear()
    assert build.load_kernel("toy") is not None, build.kernel_status("toy")
    assert build.kernel_traits("toy") == f" -march={plain}"
    assert build.kernel_status("toy").endswith(f" -march={plain}")
    assert len(list((tmp_path / "cache").glob("toy-*.so"))) == 2


@needs_compiler
def test_an_unknown_instruction_set_is_named(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build.ARCHITECTURE_VARIABLE, "no-such-processor")
    assert build.load_kernel("toy") is None
    assert "no-such-processor" in build.kernel_status("toy")


def test_an_instruction_set_this_processor_lacks_is_not_built(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build.ARCHITECTURE_VARIABLE, "x86-64-v3")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(build, "_cpu_description", lambda: {"flags": "sse4_2 avx"})
    assert build.load_kernel("toy") is None
    said = build.kernel_status("toy")
    assert said.startswith("none: x86-64-v3 needs abm, avx2, ")
    assert " avx," not in said


@needs_compiler
def test_without_openmp_a_kernel_says_that_it_has_one_thread(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kernels / "toy.cpp").write_text(
        'extern "C" int has_threads() {\n#ifdef _OPENMP\n  return 1;\n#endif\n  return 0;\n}\n'
    )
    build.load_kernel("toy")
    with_openmp = build.kernel_traits("toy")
    compiler = tmp_path / "compiler"
    compiler.write_text(
        '#!/bin/sh\ncase " $* " in *" -fopenmp "*) exit 1;; *" --version "*) echo other;; esac\n'
        f'exec "{shutil.which("c++") or build.find_compiler()}" "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    build.load_kernel.cache_clear()
    assert build.load_kernel("toy") is not None, build.kernel_status("toy")
    assert (with_openmp, build.kernel_traits("toy")) == ("", " without OpenMP")


def test_no_compiler(kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert build.load_kernel("toy") is None
    assert build.kernel_status("toy").startswith("none: no C++ compiler found")


def test_switched_off(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNHPC_KERNELS", "off")
    assert build.load_kernel("toy") is None
    assert build.kernel_status("toy") == "none: switched off by GNNHPC_KERNELS=off"


def test_a_missing_source_is_named(kernels: Path) -> None:
    if not any(map(shutil.which, build.COMPILERS)):
        pytest.skip("no C++ compiler")
    assert build.load_kernel("absent") is None
    assert "absent.cpp" in build.kernel_status("absent")


@needs_compiler
def test_a_cache_others_can_write_to_is_not_used(kernels: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    assert build.cache_folder() is None
    library = build.load_kernel("toy")
    assert library is not None
    assert library.answer() == 42
    assert list(cache.iterdir()) == []
    assert "this process alone" in build.kernel_status("toy")


@needs_compiler
def test_processes_at_once_compile_once(kernels: Path, tmp_path: Path) -> None:
    real = shutil.which("c++") or build.find_compiler()
    log = tmp_path / "compiled"
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/sh\ncase "$1" in --version) ;; *) echo x >> "{log}"; sleep 0.3;; esac\n'
        f'exec "{real}" "$@"\n'
    )
    compiler.chmod(0o755)
    program = (
        "from pathlib import Path\n"
        "from gnnhpc.kernels import compile as build\n"
        f"build._SOURCES = Path({str(kernels)!r})\n"
        "library = build.load_kernel('toy')\n"
        "raise SystemExit(0 if library is not None and library.answer() == 42 else 1)\n"
    )
    environment = os.environ | {"CXX": str(compiler)}
    ranks = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(4)]
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0, 0]
    assert log.read_text() == "x\n"
    assert not list((tmp_path / "cache").glob("*.tmp"))
