"""A whole training step of ViG in one process: forward, loss, backward, Adam."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.isolated import peak_mib
from benchmarks.ratios import take_turns
from gnnhpc.data.settings import SyntheticCifar10
from gnnhpc.distributed.allocator import map_large_blocks_separately
from gnnhpc.engines.clock import Clock
from gnnhpc.engines.stage import build_stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.context import Context
from gnnhpc.models.vig.model import Vig

IMAGE_SIZE, CLASSES = 32, 10
EdgeForm = Literal["edge_index", "adj_t"]
Form = Literal["fused", "reference", "edge_index", "adj_t"]
"""This project's layers, its PyG layers, and the study's flat form with edges in two forms."""


def step(
    implementation: Literal["fused", "pyg"], images: int, device: torch.device
) -> Callable[[], float]:
    """A function that trains one mini-batch of this project's layers and returns its seconds."""
    experiment = Experiment(
        model=Vig(implementation=implementation),
        data=SyntheticCifar10(train=images, test=images),
        batch_size=images,
    )
    layers = experiment.model.outline(experiment.data.facts())
    stage = build_stage(experiment, layers, [range(len(layers))], StepTimer(Clock(device)))
    stage = stage.to(device)
    stage.timer = None
    pixels, labels = made_up(images, device)
    return trained(stage, lambda: stage(pixels, Context()), labels, device)


def flat_step(form: EdgeForm, images: int, device: torch.device) -> Callable[[], float]:
    """The same of the study's own form, with edges of the whole batch as `form` has them."""
    from benchmarks.flat_vig import FlatVig, batch_edges

    model = FlatVig(Vig(), CLASSES).to(device)
    edges = batch_edges(form, IMAGE_SIZE, images, device)
    pixels, labels = made_up(images, device)
    nodes = pixels.reshape(-1, 3)
    image = torch.arange(images, device=device).repeat_interleave(IMAGE_SIZE**2)
    return trained(model, lambda: model(nodes, edges, image), labels, device)


def made_up(images: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixels [images, nodes, 3] and labels, the same for every form."""
    draw = torch.Generator().manual_seed(0)
    pixels = torch.rand((images, IMAGE_SIZE**2, 3), generator=draw).to(device)
    return pixels, torch.randint(0, CLASSES, (images,), generator=draw).to(device)


def trained(
    model: nn.Module, logits: Callable[[], Tensor], labels: Tensor, device: torch.device
) -> Callable[[], float]:
    """A function that trains one mini-batch: zero gradients, forward, loss, backward, Adam."""
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    clock = Clock(device)

    def train() -> float:
        clock.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(logits(), labels).backward()
        optimizer.step()
        clock.synchronize()
        return time.perf_counter() - start

    return train


def contestant(form: Form, images: int, device: str = "cpu") -> Callable[[], float]:
    """A step of `images` images in one of the forms, for `benchmarks.turns`."""
    place = torch.device(device)
    if form == "fused":
        map_large_blocks_separately()
        return step("fused", images, place)
    if form == "reference":
        return step("pyg", images, place)
    return flat_step(form, images, place)


def alone(images: int, rounds: int, threads: int, device: str = "cpu") -> dict[str, list[float]]:
    """Seconds a step of the fused layers, and the most MiB this process held, as a worker's."""
    map_large_blocks_separately()
    torch.set_num_threads(threads)
    place = torch.device(device)
    seconds = take_turns({"fused": step("fused", images, place)}, rounds)["fused"]
    on_device = place.type == "cuda"
    peak = torch.cuda.max_memory_allocated(place) / 2**20 if on_device else peak_mib()
    return {"seconds": seconds, "peak_mib": [peak]}
