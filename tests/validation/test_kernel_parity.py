"""Kernel parity agrees with every healthy layer, and leaves the run as it was."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import Block
from gnnhpc.kernels import cpp_aggregate as aggregate
from gnnhpc.kernels.compile import load_kernel
from gnnhpc.kernels.neighbor_weights import NeighbourWeights, by_target
from gnnhpc.records.schema import Check
from gnnhpc.training.setup import TrainingParts, set_up
from gnnhpc.validation.kernel_parity import check_kernels
from gnnhpc.validation.layers.compared_rows import chosen_rows
from tests.tools.backends import needs_dgl
from tests.tools.cells import GAT, GRAPH_MODELS, GRAPHS, LINKED, SAMPLED, VIG

When = Literal["start", "end"]
WHENS: tuple[When, When] = ("start", "end")
CPU = torch.device("cpu")
OF_GRAPHS = {
    "-".join((*map(str, model.values()), chunks, form)): GAT
    | {"model": model | {"implementation": form}, "chunks": chunks}
    for model in GRAPH_MODELS
    for chunks in ("contiguous", "halo")
    for form in ("fused", "pyg", "dgl")
    if form != "dgl"
    or (model["name"] not in ("graphconv", "gcnii") and model.get("aggregator") != "max")
}
OTHER_DATA = {
    "sampled": SAMPLED,
    "sampled gat": SAMPLED | {"model": {"name": "gat"}},
    "links": LINKED,
    "small graphs": GRAPHS,
    "small graphs of PyG": GRAPHS | {"model": {"name": "gin", "implementation": "pyg"}},
    "images": VIG,
    "one image": VIG | {"batch_size": 4},
    "deferred statistics": VIG | {"batchnorm": "deferred"},
    "images of PyG": VIG | {"model": VIG["model"] | {"implementation": "pyg"}},
    "images in float64": VIG | {"dtype": "float64"},
}


def parts_of(raw: dict[str, Any]) -> tuple[Experiment, TrainingParts, Mesh]:
    """The parts of an experiment that one process runs."""
    experiment = Experiment.model_validate(raw)
    mesh = Mesh(experiment.process_layout, 0, CPU)
    return experiment, set_up(experiment, mesh, None), mesh


def checked(raw: dict[str, Any], when: When = "start") -> Check:
    """The verdict about an experiment in this process."""
    (check,) = check_kernels(*parts_of(raw), when=when)
    return check


@pytest.mark.quick(
    *("gat-halo-fused", "sage-max-contiguous-pyg", "gatv2-halo-dgl", "gin-halo-fused"),
    *OTHER_DATA,
)
@pytest.mark.parametrize("name", OF_GRAPHS | OTHER_DATA)
def test_layers_agree(name: str) -> None:
    cell = (OF_GRAPHS | OTHER_DATA)[name]
    implementation = cell["model"].get("implementation", "fused")
    if implementation == "dgl":
        needs_dgl()
    if "sampling" in cell and load_kernel("sample_neighbors") is None:
        pytest.skip("no compiled sampler")
    for when in WHENS:
        check = checked(cell, when)
        assert check.verdict == "ok", check.detail
        assert implementation in check.detail
        assert name in OTHER_DATA or set(check.values["compared"].values()) == {1.0}


def test_compared_rows_are_borders_the_largest_and_random_ones() -> None:
    edges = torch.ones(100_000, dtype=torch.int64)
    edges[54_321], edges[777] = 400, 5_000
    rows = set(chosen_rows(edges, 2_000, torch.Generator()).tolist())
    assert {0, 1, 15, 16, 63, 64, 1024, 65_535, 65_536, 99_999, 54_321} <= rows
    assert 777 not in rows
    assert int(edges[sorted(rows)].sum()) <= 2_000
    assert len(rows) > 1_000


@pytest.mark.parametrize("raw", [VIG, GAT], ids=["vig", "gat"])
def test_the_run_is_left_as_it_was(raw: dict[str, Any]) -> None:
    experiment, parts, mesh = parts_of(raw)
    before = {name: value.clone() for name, value in parts.stage.state_dict().items()}
    numbers = torch.random.get_rng_state()
    parts.stage.train()
    check_kernels(experiment, parts, mesh, when="start")
    assert all(module.training for module in parts.stage.modules())
    assert torch.equal(torch.random.get_rng_state(), numbers)
    for name, value in parts.stage.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize(
    ("when", "block", "stacks"),
    [("start", 1, {"one call of block0.ffn to block1.ffn"}), ("end", 0, set())],
)
def test_the_end_takes_other_layers_than_the_start(
    when: When, block: int, stacks: set[str]
) -> None:
    if load_kernel("vig_mlp") is None:
        stacks = set()
    layers = checked(VIG, when).values["layers"]
    assert set(layers) == {f"block{block}.grapher", f"block{block}.ffn", "readout"} | stacks


def test_numbers_beside_zero_before_a_relu_are_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounding decides whether they have a gradient: other numbers with other parameters."""
    true = nn.functional.relu

    def rounded(x: Tensor, inplace: bool = False) -> Tensor:
        out = true(x)
        place = int(x.detach().abs().sum().mul(1e6)) % x.numel()
        without = torch.arange(x.numel()).view_as(x) == place
        return torch.where(without, out.detach(), out)

    monkeypatch.setattr(nn.functional, "relu", rounded)
    check = checked(GAT | {"model": {"name": "gin"}, "microbatches": 1})
    assert check.verdict == "ok", check.detail


def test_a_run_that_diverged_is_not_compared() -> None:
    experiment, parts, mesh = parts_of(GAT)
    with torch.no_grad():
        next(parts.stage.parameters()).fill_(torch.inf)
    (check,) = check_kernels(experiment, parts, mesh, when="end")
    assert check.verdict == "inconclusive"
    assert "layer0.dropout + layer0.attention" in check.detail


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("width", [8, 37])
def test_sums_reach_rows_beyond_2_to_the_31st_number(index: torch.dtype, width: int) -> None:
    """Three rows lie so far apart that their places need more than 32 bits."""
    apart = 2**30 + 1
    try:
        memory = torch.empty(2 * apart + width)
    except RuntimeError as error:
        pytest.skip(f"no address space: {error}")
    x = memory.as_strided((3, width), (apart, 1))
    if load_kernel("aggregate") is None:
        pytest.skip("no compiled kernel")
    x.copy_(torch.arange(3.0 * width).view(3, width))
    ends = torch.tensor([2, 1, 2, 0], dtype=index)
    indptr = torch.tensor([0, 1, 4], dtype=index)
    block = Block(indptr, ends, torch.tensor([0, 1, 1, 1], dtype=index), ends, 3)
    total = aggregate.sum_rows(x, by_target(block, NeighbourWeights(loops=True)))
    assert torch.equal(total, torch.stack((x[2], x.sum(0))))
    largest, _ = aggregate.max_forward(x, block)
    assert torch.equal(largest, torch.stack((x[2], x[2])))
