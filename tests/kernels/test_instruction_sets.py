"""The kernels' tests under settings that this machine would not choose; a few of those that
`make instruction-sets` has."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.kernels import architecture, build
from tests.kernels.instruction_sets import (
    NO_OPENMP,
    OWN_CHOICE,
    ROOT,
    Setting,
    axes,
    environment,
    run_settings,
)
from tests.kernels.pairwise import pairs_of, pairwise_cover

AXIS = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True)
CROSS_COMPILER = "aarch64-linux-gnu-g++"

# What a laptop of ten years ago would do, and a machine whose compiler is poor.
FEW = [
    Setting("x86-64-v2", "default", "COMPATIBLE", "3"),
    Setting(NO_OPENMP, "avx2", "AVX2", "2"),
]
FEW_TESTS = [f"tests/{name}.py" for name in ("kernels/test_vig_kernel", "models/test_gat_fused")]
FEW_TESTS += [
    "tests/kernels/test_aggregate_kernel.py",
    "tests/models/test_layer_implementations.py::"
    "test_gatv2_is_pygs_with_any_heads_and_many_edges_a_node",
    "tests/models/test_vig_fused.py::test_float32_is_the_exact_reference",
]


@pytest.mark.slow
@pytest.mark.parametrize("setting", FEW, ids=["x86-64-v2", "no OpenMP"])
def test_kernels_hold_under_another_setting(setting: Setting, tmp_path: Path) -> None:
    allowed = axes()
    if any(value not in axis for value, axis in zip(setting, allowed, strict=True)):
        setting = Setting("native", "default", OWN_CHOICE, setting.threads)
    (outcome,) = run_settings([setting], tmp_path, FEW_TESTS)
    if outcome.verdict == "not here":
        pytest.skip(outcome.said)
    assert outcome.verdict == "passed", outcome.output


@pytest.mark.slow
def test_a_setting_that_does_not_take_hold_runs_no_test(tmp_path: Path) -> None:
    setting = Setting("native", OWN_CHOICE, OWN_CHOICE, "2")
    expected = setting._replace(threads="1").expected()
    command = [sys.executable, "-m", "tests.kernels.under_setting", json.dumps(expected)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(setting, tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'threads': 2" in done.stdout


@given(st.lists(AXIS, min_size=2, max_size=4))
def test_every_two_values_meet(chosen: list[list[str]]) -> None:
    every = list(itertools.product(*chosen))
    cover = pairwise_cover(chosen)
    assert set(cover) <= set(every)
    assert set().union(*map(pairs_of, cover)) == set().union(*map(pairs_of, every))
    assert len(cover) == len(set(cover))


def test_pairs_are_far_fewer_than_all() -> None:
    assert len(pairwise_cover([["a", "b", "c"]] * 4)) < 3**4 / 4


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["aggregate", "gat", "gatv2", "sample", "vig"])
@pytest.mark.parametrize("processor", ["armv8-a", "armv8.2-a+sve"])
def test_compiles_for_aarch64(kernel: str, processor: str, tmp_path: Path) -> None:
    if shutil.which(CROSS_COMPILER) is None:
        assert "GNNHPC_REQUIRE_CROSS" not in os.environ, f"no {CROSS_COMPILER}"
        pytest.skip(f"no {CROSS_COMPILER}")
    source = Path(build.__file__).with_name(f"{kernel}.cpp")
    flags = (*build.FLAGS, f"-march={processor}", *build.OPENMP_FLAGS[0], "-Wall", "-Werror")
    library = tmp_path / f"{kernel}.so"
    subprocess.run([CROSS_COMPILER, *flags, str(source), "-o", str(library)], check=True)
    assert library.read_bytes()[18:20] == (183).to_bytes(2, "little")  # EM_AARCH64


def test_levels_hold_those_below() -> None:
    levels = list(architecture.LEVELS.values())
    assert all(low < high for low, high in itertools.pairwise(levels))
