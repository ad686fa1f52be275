"""A training step of ViG in one process: collapsed layers against PyG's, by number of threads.

    python -m benchmarks.bench_vig [--images 1000] [--reference 10] [--rounds 3] [--threads 1 2]

Each round times a step (zero gradients, forward, loss, backward, Adam; 8 blocks) of both in turn.
PyG's layers need tens of GB at 1000 images, so they get few, and times are seconds an image. CPU
seconds stand beside wall seconds: on a machine that is shared they are what can be repeated.
Micro-batches show what a layer costs beyond its images.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from benchmarks.isolated import call, peak_mib
from benchmarks.ratios import Compared, paired, take_turns
from benchmarks.vig_step import step


def with_cpu(train: Callable[[], float], images: int, cpu: list[float]) -> Callable[[], float]:
    """`train`, in seconds an image; its CPU seconds an image are noted in `cpu`."""

    def run() -> float:
        start = time.process_time()
        wall = train()
        cpu.append((time.process_time() - start) / images)
        return wall / images

    return run


def measure(images: int, reference: int, rounds: int, threads: int) -> dict[str, list[float]]:
    """Wall and CPU seconds an image of both, a number a round."""
    torch.set_num_threads(threads)
    place = torch.device("cpu")
    cpu: dict[str, list[float]] = {"fused": [], "reference": []}
    wall = take_turns(
        {
            "fused": with_cpu(step("fused", images, place), images, cpu["fused"]),
            "reference": with_cpu(step("pyg", reference, place), reference, cpu["reference"]),
        },
        rounds,
    )
    return {f"{name} wall": values for name, values in wall.items()} | {
        f"{name} cpu": values[1:] for name, values in cpu.items()
    }


def in_slices(images: int, slices: int, rounds: int, threads: int) -> dict[str, list[float]]:
    """CPU seconds of as many steps of `images / slices` images as make up `images`; peak MiB."""
    torch.set_num_threads(threads)
    part = images // slices
    train = step("fused", part, torch.device("cpu"))
    train()
    cpu = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(slices):
            train()
        cpu.append(time.process_time() - start)
    return {"cpu": cpu, "peak_mib": [peak_mib()]}


def line(what: str, found: Compared) -> str:
    ratio = found.ratio
    return (
        f"{what:24} {found.ours * 1e3:9.2f} {found.reference * 1e3:9.2f} "
        f"{ratio.value:8.1f} ({ratio.low:.1f} to {ratio.high:.1f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=1000, help="a fused step")
    parser.add_argument("--reference", type=int, default=10, help="images of a PyG step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    print(f"{'ms an image':24} {'fused':>9} {'PyG':>9} {'ratio':>8}")
    for threads in given.threads:
        found = call(
            "benchmarks.bench_vig:measure",
            images=given.images,
            reference=given.reference,
            rounds=given.rounds,
            threads=threads,
        )
        for clock in ("wall", "cpu"):
            compared = paired(found[f"fused {clock}"], found[f"reference {clock}"])
            print(line(f"{clock}, threads: {threads}", compared), flush=True)
    for slices in (1, 5, 20):
        found = call(
            "benchmarks.bench_vig:in_slices",
            images=given.images,
            slices=slices,
            rounds=given.rounds,
            threads=1,
        )
        low, high = min(found["cpu"]), max(found["cpu"])
        print(
            f"{given.images} images in {slices} parts: {low:.2f} to {high:.2f} CPU s, "
            f"peak {found['peak_mib'][0]:.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
