"""Made-up data teach the project's own models within a few steps."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gnnhpc.batches.image_loader import ImageLoader
from gnnhpc.data.images import load_images
from gnnhpc.data.settings import SyntheticCifar10
from gnnhpc.models.context import Context
from gnnhpc.models.model import BuildOptions
from gnnhpc.models.vig.model import Vig


def test_losses_of_vig_fall_within_twenty_steps() -> None:
    data = SyntheticCifar10(train=2000, image_size=8)
    config = Vig(blocks=2, grapher_width=32, ffn_width=64, readout_width=256)
    torch.manual_seed(0)
    layers = nn.ModuleList(
        config.build(layer, BuildOptions(torch.float32)) for layer in config.outline(data.facts())
    )
    adam = torch.optim.Adam(layers.parameters(), lr=1e-3)
    losses = []
    with ImageLoader(load_images(data, None, "train"), batch_size=100, stop=20) as loader:
        for batch in loader:
            assert batch.pixels is not None
            x = batch.pixels
            for layer in layers:
                x = layer(x, Context(step=batch.step))
            loss = functional.cross_entropy(x, batch.labels)
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(loss.item())
    assert np.mean(losses[-3:]) < 0.5 * np.mean(losses[:3])
