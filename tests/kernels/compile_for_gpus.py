"""Compiles every program for a GPU that need not be here, as layers would launch it.

    python -m tests.kernels.compile_for_gpus

Fails where a program was not compiled, and where registers do not hold what a program of ViG's
layers computes with, or where one of these divides floating-point numbers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from gnnhpc.kernels import triton_sampler
from gnnhpc.kernels.dropout_mask import MaskKeys, layer_mask
from gnnhpc.kernels.neighbor_weights import NeighbourWeights, by_source, by_target
from gnnhpc.kernels.sample_neighbors import Layer
from gnnhpc.kernels.triton import triton_aggregate, triton_attention
from gnnhpc.kernels.vig import triton_vig
from gnnhpc.models.vig.fused import FusedFfn, FusedGrapher
from tests.kernels.test_aggregate import small_block
from tests.kernels.test_sparse_features import stored

MASK = layer_mask(3, 7, "layer0.attention", 0.6)
NODES, ROWS = 20, 15
COMPILED: dict[str, ModuleType] = {}
"""By a program's name, the module that it is in."""


class PretendedGpu:
    """What Triton asks of a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compiled(
    program: Any, grid: tuple[int, ...], *args: Any, like: Tensor, **constants: Any
) -> None:
    """In the place of a launch: compile what it would run."""
    made = program.warmup(*args, grid=grid, **constants)
    assert made.asm["cubin"]
    if program.__name__.startswith("vig_"):
        assert spilled(made.asm["ptx"]) == 0, program.__name__
        # It takes ten instructions, in a loop that has thirty.
        assert "div.full" not in made.asm["ptx"], program.__name__
    COMPILED[program.__name__] = sys.modules[program.fn.__module__]


def compile_sampling() -> None:
    """The programs of a layer, which have nothing to sample here as none has run."""
    indptr = torch.arange(NODES + 1)
    for index in (torch.int32, torch.int64):
        triton_sampler.index_type = lambda *_, index=index: index  # type: ignore[attr-defined]
        sampler = triton_sampler.TritonSampler(indptr, torch.zeros(NODES, dtype=torch.int32))
        sampler.begin(torch.arange(5))
        sampler.draw(Layer(10, 7, 1, 0))


def spilled(ptx: str) -> int:
    """Bytes a thread that registers cannot hold and memory has to."""
    assembler = triton.knobs.nvidia.ptxas.path
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "program.ptx")
        source.write_text(ptx)
        command = [assembler, "-v", "--gpu-name=sm_90a", str(source), "-o", f"{source}.cubin"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill", report)))


def compile_vig() -> None:
    """The layers at the published widths."""
    grapher = FusedGrapher((8, 8), 256, batchnorm="micro", dtype=torch.float32)
    ffn = FusedFfn(512, batchnorm="micro", dtype=torch.float32)
    for layer in (grapher, ffn):
        _, _, (grid, weights, eps, _) = layer.call()
        x, settings = torch.rand(64, 3), (grid or (1, 64), weights)
        with torch.no_grad():
            saved = triton_vig.forward(x, *settings, None, eps).saved
            triton_vig.backward(x, *settings, saved, x, eps, wants_x=True)


def compile_layers(dtype: torch.dtype, index: torch.dtype) -> None:
    """Attention, sums, maxima and products of stored features."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    block = small_block(index)
    h, rows, first = (zeros(n, 8, 8).requires_grad_() for n in (NODES, ROWS, 1))
    vectors = torch.cat((first, first))
    for mask in (MASK, None, MaskKeys(torch.device("cpu")).mask(0, "layer", 0.5)):
        triton_aggregate.drop_rows(h.detach().flatten(1), torch.arange(NODES), mask or MASK)
        triton_attention.attend(h, None, vectors, block, mask).sum().backward(retain_graph=True)
        triton_attention.attend(h, rows, first, block, mask).sum().backward()
    x, upstream, bias = zeros(NODES, 70), zeros(ROWS, 70), zeros(70)
    factors = torch.ones(NODES, dtype=dtype)
    for weights in (
        NeighbourWeights.normalised(factors, ROWS),
        NeighbourWeights.mean(factors, ROWS),
        NeighbourWeights(own=1.5),
        NeighbourWeights(edge=torch.ones(len(block.source), dtype=dtype)),
    ):
        triton_aggregate.sum_rows(x, by_target(block, weights), upstream, bias)
        triton_aggregate.sum_rows(upstream, by_source(block, weights))
    _, winner = triton_aggregate.max_forward(x, block)
    triton_aggregate.max_backward(upstream, winner, block)
    features = stored(torch.eye(200, 3, dtype=dtype))
    triton_aggregate.sparse_forward(features, zeros(3, 70))
    triton_aggregate.sparse_backward(features, zeros(200, 70))


def main() -> None:
    driver.set_active(PretendedGpu())
    for module in (triton_aggregate, triton_attention, triton_sampler, triton_vig):
        module.launch = compiled  # type: ignore[attr-defined]
    compile_sampling()
    compile_layers(torch.float32, torch.int32)
    compile_layers(torch.float64, torch.int64)
    compile_vig()
    # Programs that are launched ask for their number; other functions are called by them.
    for module in set(COMPILED.values()):
        for name, each in vars(module).items():
            assert name in COMPILED or "tl.program_id" not in getattr(each, "src", ""), name


if __name__ == "__main__":
    main()
