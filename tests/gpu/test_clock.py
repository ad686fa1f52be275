"""A GPU's clock: events that are used again, a host that sleeps, a profile in the device's time."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from gnnhpc.batches.batch import MicroBatch
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.device_facts import device_facts
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.clock import Clock
from gnnhpc.engines.device_activity import activity_of
from gnnhpc.engines.device_memory import peak_mib, reset_peak
from gnnhpc.engines.timing import StepTimer
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.models.context import Context
from gnnhpc.tasks.build import build_task
from gnnhpc.tasks.task import Loss
from gnnhpc.train.profile import profile
from tests.tools.cells import vig

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda", 0)
CYCLES = 500_000_000
"""Some tenths of a second of a GPU."""


def wait_on_device() -> None:
    torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]


def test_a_span_is_the_devices_time_and_its_events_are_used_again() -> None:
    timer = StepTimer(Clock(GPU))
    made = []
    for _ in range(3):
        timer.prepare()
        timer.start()
        with timer.span("forward", 0):
            wait_on_device()
        began = time.perf_counter()
        # As the loop does, before ranks meet.
        timer.clock.synchronize()
        times = timer.stop()
        waited_s = time.perf_counter() - began
        assert times.total("forward") >= 0.9 * waited_s, "the host gave it out in no time"
        assert times.total("forward") <= times.wall_s
        made.append(len(timer.clock._events))
    assert len(set(made)) == 1


def test_a_host_that_waits_for_the_device_sleeps() -> None:
    clock = Clock(GPU)
    clock.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    wait_on_device()
    clock.synchronize()
    assert time.process_time() - cpu < 0.5 * (time.perf_counter() - wall)


def test_another_thread_sees_what_the_device_has_reached() -> None:
    timer = StepTimer(Clock(GPU))
    timer.prepare()
    timer.start()
    with timer.span("forward", 0):
        wait_on_device()
    seen = []
    activity = activity_of(timer)
    thread = threading.Thread(target=lambda: seen.append((activity.work, activity.doing)))
    thread.start()
    thread.join()
    timer.clock.synchronize()
    assert seen[0][1] == "forward of micro-batch 0"
    assert activity.work > seen[0][0]


def test_a_profile_takes_the_devices_time() -> None:
    experiment = vig(microbatches=1)
    layers = outline(experiment)
    inputs = torch.zeros((4, *layers[0].inputs), device=GPU)
    example = MicroBatch(
        inputs, {"train": torch.zeros(4, dtype=torch.int64, device=GPU)}, Context()
    )
    costs = profile(experiment, layers, example, Loss(build_task(experiment), 1), GPU)
    assert all(cost.forward_s > 0 and cost.backward_s > 0 for cost in costs)


def test_the_peak_is_that_since_the_last_reset() -> None:
    large = torch.empty(64 * 2**20, dtype=torch.uint8, device=GPU)
    del large
    reset_peak([GPU])
    small = torch.empty(2**20, dtype=torch.uint8, device=GPU)
    peak = peak_mib([GPU])
    assert peak is not None
    assert 1 <= peak < torch.cuda.memory_allocated(GPU) / 2**20 + 32
    del small


def test_what_a_record_says_of_the_gpu() -> None:
    facts = device_facts(Mesh(Layout(), 0, GPU))
    assert facts is not None
    assert facts["name"] == torch.cuda.get_device_name(GPU)
    assert facts["identity"].startswith(("GPU-", "MIG-"))
    assert facts["cuda"]
    assert facts["driver"]
