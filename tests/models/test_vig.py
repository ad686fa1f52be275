"""ViG's layers: their sizes, and what is refused."""

from __future__ import annotations

import pytest
import torch

from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.data.data_settings import Cifar10
from gnnhpc.models.model import BuildOptions
from gnnhpc.models.vig.model import Vig

SMALL = Vig(blocks=1, grapher_width=6, ffn_width=10, readout_width=8)
CIFAR10 = Cifar10().facts()


def test_as_many_parameters_as_published() -> None:
    config = Vig()
    built = [config.build(layer, BuildOptions(torch.float64)) for layer in config.outline(CIFAR10)]
    counts = [sum(p.numel() for p in layer.parameters()) for layer in built]
    assert (counts[0] + counts[1], counts[-1], sum(counts)) == (138_258, 14_346, 1_120_410)
    assert counts == [layer.parameters for layer in config.outline(CIFAR10)]


@pytest.mark.parametrize(("nodes", "channels"), [(15, 3), (16, 1)])
def test_images_that_do_not_fit_are_refused(nodes: int, channels: int) -> None:
    shape = (nodes, channels)
    layer = LayerSpec("block0.grapher", shape, shape, kind="grapher")
    with pytest.raises(ValueError, match=r"block0\.grapher"):
        SMALL.build(layer, BuildOptions(torch.float32))
