"""A whole training step of ViG in one process: forward, loss, backward, Adam."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import torch
from torch.nn import functional

from benchmarks.isolated import peak_mib
from benchmarks.ratios import take_turns
from gnnhpc.data.settings import SyntheticCifar10
from gnnhpc.engines.clock import Clock
from gnnhpc.engines.stage import build_stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.models.context import Context
from gnnhpc.models.vig.model import Vig
from gnnhpc.ranks.allocator import map_large_blocks_separately
from gnnhpc.spec.experiment import Experiment

IMAGE_SIZE, CLASSES = 32, 10


def step(
    implementation: Literal["fused", "reference"], images: int, device: torch.device
) -> Callable[[], float]:
    """A function that trains one mini-batch and returns its seconds."""
    experiment = Experiment(
        model=Vig(implementation=implementation),
        data=SyntheticCifar10(train=images, test=images),
        batch_size=images,
    )
    layers = experiment.model.outline(experiment.data.facts())
    clock = Clock(device)
    stage = build_stage(experiment, layers, range(len(layers)), StepTimer(clock)).to(device)
    stage.timer = None
    optimizer = torch.optim.Adam(stage.parameters(), fused=True)
    draw = torch.Generator().manual_seed(0)
    pixels = torch.rand((images, IMAGE_SIZE**2, 3), generator=draw).to(device)
    labels = torch.randint(0, CLASSES, (images,), generator=draw).to(device)

    def train() -> float:
        clock.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(stage(pixels, Context()), labels).backward()
        optimizer.step()
        clock.synchronize()
        return time.perf_counter() - start

    return train


def in_turns(
    fused: int, reference: int, rounds: int, threads: int, device: str = "cpu"
) -> dict[str, list[float]]:
    """Seconds an image of both implementations, at as many images a step as each is given."""
    torch.set_num_threads(threads)
    place = torch.device(device)
    seconds = take_turns(
        {
            "fused": step("fused", fused, place),
            "reference": step("reference", reference, place),
        },
        rounds,
    )
    images = {"fused": fused, "reference": reference}
    return {name: [s / images[name] for s in values] for name, values in seconds.items()}


def alone(images: int, rounds: int, threads: int, device: str = "cpu") -> dict[str, list[float]]:
    """Seconds a step of the fused layers, and the most MiB this process held, as a worker's."""
    map_large_blocks_separately()
    torch.set_num_threads(threads)
    place = torch.device(device)
    seconds = take_turns({"fused": step("fused", images, place)}, rounds)["fused"]
    on_device = place.type == "cuda"
    peak = torch.cuda.max_memory_allocated(place) / 2**20 if on_device else peak_mib()
    return {"seconds": seconds, "peak_mib": [peak]}
