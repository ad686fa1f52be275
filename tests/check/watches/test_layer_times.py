"""A layer's forward seconds lie between two readings of another clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import nn

from gnnhpc.check.watches.faults import Faults
from gnnhpc.check.watches.layer_times import LayerSeconds, LayerTimes, _between, called_together
from gnnhpc.check.watches.part_faults import PartFaults, StageFacts
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.timing import StepTimes
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.one_call import InOneCall
from gnnhpc.train.setup import set_up
from tests.tools.cells import gat, vig
from tests.tools.step_records import step_record


def test_bounds_of_layers_that_are_called_one_after_the_other() -> None:
    one_microbatch: list[Any] = [
        ("begins", None, 1.0),
        *(("begins", 0, 1.1), ("ends", 0, 1.4)),
        # Some rows at a time.
        *(("begins", 1, 1.5), ("ends", 1, 1.6), ("begins", 1, 1.7), ("ends", 1, 1.9)),
        ("ends", None, 2.0),
    ]
    next_one = [(what, number, at_s + 1.5) for what, number, at_s in one_microbatch]
    first, second = _between([("a",), ("b", "c")], [*one_microbatch, *next_one])
    assert (first.names, second.names) == (("a",), ("b", "c"))
    assert first[1:] == pytest.approx((0.6, 1.0))
    assert second[1:] == pytest.approx((0.6, 1.2))


class Together(InOneCall):
    """Of a kind that one call computes."""


def test_layers_of_one_call_are_held_together() -> None:
    layers = [nn.ReLU(), Together(), Together(), nn.ReLU(), Together()]
    assert called_together(layers) == [range(1), range(1, 3), range(3, 4), range(4, 5)]


def compared(
    times: StepTimes,
    seen: list[LayerSeconds],
    names: list[str],
    kind: Literal["forward", "backward"] = "forward",
) -> list[str]:
    faults = PartFaults(Faults(), StageFacts(dict.fromkeys(names, "all")))
    faults.compare_layers(step_record(times.wall_s), times, seen, kind)
    return faults.faults.told()


@pytest.mark.usefixtures("one_busy_processor")
@pytest.mark.parametrize("experiment", [gat(layout="seq"), vig(layout="seq")])
def test_layers_take_what_is_seen_of_them_and_others_do_not(experiment: Experiment) -> None:
    """Beside two processes on the same processor."""
    parts = set_up(experiment, Mesh(Layout.parse("seq"), 0, torch.device("cpu")), None)
    stage, timer, watch = parts.stage, parts.timer, LayerTimes(parts.stage)
    microbatch = parts.batches.example()
    names = [layer.name for layer in stage.outlines]
    for _ in range(20):
        watch.attach()
        timer.prepare()
        timer.start()
        for m in range(3):
            with timer.span("forward", m):
                stage(microbatch.inputs, microbatch.context)
        times = timer.stop()
        watch.detach()
        seen = watch.seen()
        assert [name for each in seen for name in each.names] == names
        assert compared(times, seen, names) == []
    if len(seen) == 1:
        # All in one call.
        return
    seconds = list(times.layers.values())
    shifted = dict(zip(times.layers, [*seconds[1:], seconds[0]], strict=True))
    (fault,) = compared(replace(times, layers=shifted), seen, names)
    assert fault.startswith("forward seconds of layers that these did not take in 1 steps, first")


def test_a_device_s_seconds_are_not_held_against_the_host_s() -> None:
    times = StepTimes(1.0, 0.0, [], {"a": [0.5, 0.0]}, 0, None)
    seen = [LayerSeconds(("a",), 0.1, 0.2)]
    assert compared(times, seen, ["a"]) == []
    assert len(compared(replace(times, waiting_cpu_s=0.0), seen, ["a"])) == 1
    # Layers on several devices are not timed.
    assert compared(replace(times, waiting_cpu_s=0.0), seen, []) == []
