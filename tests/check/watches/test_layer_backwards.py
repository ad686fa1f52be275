"""A layer's backward seconds lie between two readings of another clock."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from gnnhpc.check.watches.faults import Faults
from gnnhpc.check.watches.layer_backwards import (
    Called,
    Event,
    LayerBackwards,
    Mark,
    _in_call,
    between,
    marks_of,
)
from gnnhpc.check.watches.layer_times import LayerSeconds
from gnnhpc.check.watches.part_faults import PartFaults, StageFacts
from gnnhpc.check.watches.second_clock import SeenStep
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.autograd import backward
from gnnhpc.engines.timing import Span, StepTimes
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.train.setup import set_up
from tests.check.watches.test_layer_times import compared
from tests.tools.cells import gat, vig
from tests.tools.step_records import step_record

A, B, CALL = ("a",), ("b",), ("c", "d")
FIRST, SECOND = ("backward", 0, 0), ("backward", 0, 1)


def test_marks_of_layers_that_go_backward_one_after_the_other() -> None:
    events = [
        *(Event("reaches", B, 1.0, FIRST), Event("told", B, 1.1, None)),
        *(Event("reaches", A, 2.0, FIRST), Event("told", A, 2.1, None)),
        Event("added", (), 3.0, None),
        *(Event("reaches", B, 5.0, SECOND), Event("told", B, 5.1, None)),
        Event("added", (), 6.0, None),
        Event("other", (), 9.0, ("forward", -1, -1)),
    ]
    marks = marks_of(events)
    assert marks is not None
    assert marks[:3] == [Mark(B, 1.0, 1.1), Mark(A, 2.0, 2.1), Mark(None, 3.0, 5.0)]
    found = between(marks, 6.0)
    assert found[B] == pytest.approx((0.9 + 0.9, 1.1 + 4.0))
    assert found[A] == pytest.approx((0.9, 3.0))
    # What comes after all gradients were there may be all-reduce.
    assert between(marks, 2.5)[A] == pytest.approx((0.4, 3.0))


def test_a_users_hook_of_a_whole_layer_comes_between_the_mark_and_the_gradient() -> None:
    events = [
        *(Event("told", B, 1.1, None), Event("reaches", B, 1.2, FIRST)),
        *(Event("reaches", A, 2.0, FIRST), Event("told", A, 2.1, None)),
        *(Event("other", (), 3.0, None), Event("told", B, 5.1, None)),
        *(Event("reaches", B, 5.2, SECOND), Event("other", (), 6.0, ("forward", -1, -1))),
    ]
    marks = marks_of(events)
    assert marks is not None
    assert marks == [
        *(Mark(B, 1.1, 1.1), Mark(A, 2.0, 2.1), Mark(None, 3.0, 5.1), Mark(B, 3.0, 5.1)),
        Mark(None, 5.1, 6.0),
    ]


def test_a_call_s_mark_comes_after_the_gradient_of_its_output() -> None:
    events = [Event("reaches", CALL, 1.0, FIRST), Event("added", (), 3.0, None)]
    assert marks_of(events) == [Mark(CALL, 1.0, 3.0)]


def test_an_output_that_the_engine_does_not_mark_tells_nothing() -> None:
    assert marks_of([Event("reaches", A, 1.0, FIRST), Event("reaches", B, 2.0, FIRST)]) is None


def test_each_layer_of_a_call_begins_where_the_next_one_has_ended() -> None:
    call = Called(("c", "d", "e"), 1.0, [4.0, 3.5, 2.0])
    assert [_in_call(call, name) for name in ("c", "d", "e", "other")] == [0.5, 1.5, 1.0, 0.0]
    again = Called(("c", "d", "e"), None, [1.0, 1.5, 2.5])
    assert [_in_call(again, name) for name in ("c", "d", "e")] == [0.0, 0.5, 1.0]


@pytest.mark.usefixtures("one_busy_processor")
@pytest.mark.parametrize(
    "experiment",
    [
        gat(layout="seq"),
        vig(layout="seq"),
        gat(layout="seq", activation_checkpointing="always"),
        vig(layout="seq", activation_checkpointing="always"),
    ],
)
def test_layers_take_what_is_seen_of_them_and_others_do_not(experiment: Experiment) -> None:
    """Beside two processes on the same processor."""
    parts = set_up(experiment, Mesh(Layout.parse("seq"), 0, torch.device("cpu")), None)
    stage, timer, watch = parts.stage, parts.timer, LayerBackwards(parts.stage)
    microbatch = parts.batches.example()
    names = [layer.name for layer in stage.outlines]
    for _ in range(20):
        watch.attach()
        timer.prepare()
        timer.start()
        with stage.one_step(3):
            for m in range(3):
                context = replace(microbatch.context, microbatch=m)
                output = stage(microbatch.inputs, context)
                backward(output.square().sum(), None)
                timer.layer_backward(None, timer.clock.mark())
        times = timer.stop()
        watch.detach()
        seen = watch.seen()
        assert {name for each in seen for name in each.names} == set(names)
        assert compared(times, seen, names, "backward") == []
    seconds = list(times.layers.values())
    for others in (
        [[f, b / 2] for f, b in seconds],
        [[f, b] for (f, _), (_, b) in zip(seconds, [*seconds[1:], seconds[0]], strict=True)],
        [[f, sum(b for _, b in seconds) * (n == 0)] for n, (f, _) in enumerate(seconds)],
    ):
        told = replace(times, layers=dict(zip(times.layers, others, strict=True)))
        (fault,) = compared(told, seen, names, "backward")
        assert fault.startswith("backward seconds of layers that these did not take in 1 steps")


def test_no_hook_stays() -> None:
    mesh = Mesh(Layout.parse("seq"), 0, torch.device("cpu"))
    parts = set_up(vig(layout="seq"), mesh, None)
    watch = LayerBackwards(parts.stage)
    watch.attach()
    watch.detach()
    for layer in parts.stage.modules():
        assert not layer._forward_hooks
        assert not layer._forward_pre_hooks
    assert not parts.stage.on_backward
    assert watch.seen() == [
        LayerSeconds(each.names, 0.0, 0.0) for each in watch.seen() if each.most_s < math.inf
    ]


@pytest.mark.parametrize(
    ("told_s", "steps", "recomputed", "wrong"),
    [
        (0.9, 3, [], False),
        (0.5, 3, [], True),
        (0.5, 2, [], False),
        (0.5, 3, [(0, 0)], False),
    ],
)
def test_layers_go_backward_as_long_as_their_stage(
    told_s: float, steps: int, recomputed: list[tuple[int, int]], *, wrong: bool
) -> None:
    faults = PartFaults(Faults(), StageFacts({"a": "all"}))
    for _ in range(steps):
        spans = [Span("backward", 0, 0.0, 1.1)]
        times = StepTimes(1.2, 0.0, spans, {"a": [0.0, told_s]}, 0, None, waiting_cpu_s=0.0)
        seen = SeenStep(1.2, 1.2, 0.0, 0.0, backward_s=1.0, recomputed=recomputed)
        faults._compare_backwards(step_record(times.wall_s), times, seen)
    assert len(faults.told()) == wrong
