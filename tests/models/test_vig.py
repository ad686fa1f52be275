"""ViG's layers: sizes, the grid, what is built, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.data.data_settings import Cifar10
from gnnhpc.models.layers.batchnorm import BatchNorm
from gnnhpc.models.model import BuildOptions
from gnnhpc.models.vig import reference as vig
from gnnhpc.models.vig.model import Vig

SMALL = Vig(blocks=1, grapher_width=6, ffn_width=10, readout_width=8)
CIFAR10 = Cifar10().facts()


def layers(config: Vig, options: BuildOptions) -> list[nn.Module]:
    built = []
    for index, layer in enumerate(config.outline(CIFAR10)):
        torch.manual_seed(index)
        built.append(config.build(layer, options))
    return built


def test_as_many_parameters_as_published() -> None:
    config = Vig()
    built = layers(config, BuildOptions(torch.float64))
    counts = [sum(p.numel() for p in layer.parameters()) for layer in built]
    assert (counts[0] + counts[1], counts[-1], sum(counts)) == (138_258, 14_346, 1_120_410)
    assert counts == [layer.parameters for layer in config.outline(CIFAR10)]


@pytest.mark.parametrize("grid", [(1, 1), (1, 4), (3, 5)])
def test_edges_join_neighbouring_pixels_of_one_image(grid: vig.Grid) -> None:
    height, width = grid
    pixels = [(i, r, c) for i in range(3) for r in range(height) for c in range(width)]
    number = {pixel: n for n, pixel in enumerate(pixels)}
    expected = [
        (number[source], number[target])
        for target in pixels
        for source in pixels
        if source != target
        and source[0] == target[0]
        and max(abs(source[1] - target[1]), abs(source[2] - target[2])) == 1
    ]
    edges = vig.grid_edges(grid, 3, torch.device("cpu"))
    assert [tuple(edge) for edge in edges.t().tolist()] == expected


def test_both_implementations_start_alike() -> None:
    options = BuildOptions(torch.float64, "deferred")
    fused = layers(SMALL, options)
    reference = layers(SMALL.model_copy(update={"implementation": "pyg"}), options)
    for ours, theirs in zip(fused, reference, strict=True):
        assert list(ours.state_dict()) == list(theirs.state_dict())
        for name, value in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], value), name
    norms = [
        m.mode for each in (*fused, *reference) for m in each.modules() if isinstance(m, BatchNorm)
    ]
    assert norms == ["deferred"] * 8


@pytest.mark.parametrize(("nodes", "channels"), [(15, 3), (16, 1)])
def test_images_that_do_not_fit_are_refused(nodes: int, channels: int) -> None:
    shape = (nodes, channels)
    layer = LayerSpec("block0.grapher", shape, shape, kind="grapher")
    with pytest.raises(ValueError, match=r"block0\.grapher"):
        SMALL.build(layer, BuildOptions(torch.float32))
