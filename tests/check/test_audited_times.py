"""Wrong times and wrong use of the machine, planted into normal runs on real ranks, are named."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check
from tests.tools.cells import GAT, VIG, Ran, manifest_of, run, vig
from tests.tools.computing import compute

pytestmark = pytest.mark.distributed

NOT_HERE = {"noisy", "drift", "oversubscribed", "self-check"}
"""Flags that are true of a busy machine, and of more ranks than it has CPUs; and the check of
arithmetic, which has tests of its own.
"""
LATE = 3
"""The training step from which on some defects are there."""


def gat(**changes: Any) -> Experiment:
    """Whose chunks lose no edges."""
    return Experiment.model_validate(GAT | {"chunks": "halo"} | changes)


def rank() -> int:
    return int(os.environ["RANK"])


def around(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Let `change` be called in place of a function, with the true one before its arguments."""
    true = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: change(true, *args, **kwargs))


def from_late_steps_on(change: Callable[[], None]) -> None:
    """Call `change` before training step LATE and each later one."""
    from gnnhpc.train.loop import Trainer

    def step(true: Any, trainer: Any, number: int, *args: Any) -> Any:
        if number >= LATE:
            change()
        return true(trainer, number, *args)

    around(Trainer, "_train_step", step)


def stopped_before_backward() -> None:
    """The first backward of a step ends its time; what comes after is not in it."""
    from gnnhpc.engines.timing import StepTimer

    def begin(true: Any, timer: Any, name: str, *args: Any) -> Any:
        if name == "backward" and not hasattr(timer, "stopped"):
            timer.stopped = timer.clock.now_s()
        return None if hasattr(timer, "stopped") else true(timer, name, *args)

    def end(true: Any, timer: Any, opened: Any) -> None:
        if opened is not None:
            true(timer, opened)

    def stop(true: Any, timer: Any) -> Any:
        wall_s = vars(timer).pop("stopped", None)
        times = true(timer)
        return times if wall_s is None else dataclasses.replace(times, wall_s=wall_s)

    around(StepTimer, "begin", begin)
    around(StepTimer, "end", end)
    around(StepTimer, "stop", stop)


def started_after_forward() -> None:
    from gnnhpc.engines.timing import StepTimer

    @contextlib.contextmanager
    def span(true: Any, timer: Any, name: str, *args: Any) -> Iterator[Any]:
        with true(timer, name, *args) as opened:
            yield opened
        if name == "forward":
            timer.clock.restart()

    around(StepTimer, "span", span)


def change_times(change: Callable[[Any], Any]) -> None:
    from gnnhpc.engines.timing import StepTimer

    around(StepTimer, "stop", lambda true, timer: change(true(timer)))


def half_a_wall() -> None:
    change_times(lambda times: dataclasses.replace(times, wall_s=times.wall_s / 2))


def slow_clock() -> None:
    """All that is read of the clock that records are made with."""
    import time

    true = time.perf_counter
    time.perf_counter = lambda: true() * 0.8


def busy_twice() -> None:
    change_times(lambda times: dataclasses.replace(times, spans=times.spans * 2))


def zeroed_for_long() -> None:
    """As where a wait for the stage before is counted as setting gradients to zero."""
    from gnnhpc.engines.timing import StepTimer

    def end(true: Any, timer: Any, opened: Any) -> None:
        if opened.name == "optimizer" and timer._open[0] is opened:
            time.sleep(0.004)
        true(timer, opened)

    around(StepTimer, "end", end)


def gradients_summed(change: Callable[[Any, Any], None]) -> None:
    """`change` is given what averages gradients in one all-reduce, and what sums them."""
    from gnnhpc.engines.flat_gradients import Gradients

    around(Gradients, "_sum_over_replicas", lambda true, gradients: change(gradients, true))


def comes_after_the_sum() -> None:
    """Waiting for a replica that is late is counted as all-reduce."""

    def summed(gradients: Any, true: Any) -> None:
        if rank() == 1:
            time.sleep(0.02)
        true(gradients)
        gradients.timer.arrive()

    gradients_summed(summed)


def sleeps_after_the_sum() -> None:
    def summed(gradients: Any, true: Any) -> None:
        true(gradients)
        time.sleep(0.02)

    gradients_summed(summed)


def sleeps_before_the_sum() -> None:
    def summed(gradients: Any, true: Any) -> None:
        time.sleep(0.02)
        true(gradients)

    gradients_summed(summed)


def a_tenth_of_the_sum() -> None:
    """The rest of each all-reduce is told as waiting."""
    from gnnhpc.engines.timing import StepTimer

    def end(true: Any, timer: Any, opened: Any) -> None:
        true(timer, opened)
        if opened.reduced_from is not None:
            opened.end = opened.reduced_from + (opened.end - opened.reduced_from) / 10

    around(StepTimer, "end", end)


def buckets_begun_late() -> None:
    """A wait before the last buckets are given to the other replicas is told as all-reduce."""
    from gnnhpc.engines.overlapped_gradients import OverlappedGradients

    def reduce(true: Any, gradients: Any, place: int, layer: int) -> None:
        if layer == -1:
            time.sleep(0.02)
        true(gradients, place, layer)

    around(OverlappedGradients, "_reduce_after", reduce)


def torch_sums_late() -> None:
    """After DDP's gradients were ready."""
    from gnnhpc.engines.ddp_gradients import DdpReplicas

    def reduce(true: Any, replicas: Any, bucket: Any) -> Any:
        arrive = replicas.timer.arrive
        replicas.timer.arrive = lambda: (arrive(), time.sleep(0.02))
        reduced = true(replicas, bucket)
        replicas.timer.arrive = arrive
        return reduced

    around(DdpReplicas, "reduce", reduce)


def change_backwards(change: Callable[[list[float]], list[float]]) -> None:
    """Of the layers of a step, those that it has told in their order."""
    from gnnhpc.engines.timing import StepTimer

    def layers(true: Any, timer: Any, *args: Any) -> Any:
        found = true(timer, *args)
        changed = change([backward for _, backward in found.values()])
        return {
            name: [forward, backward]
            for (name, (forward, _)), backward in zip(found.items(), changed, strict=True)
        }

    around(StepTimer, "_layers", layers)


def backwards_of_the_next() -> None:
    change_backwards(lambda seconds: [*seconds[1:], *seconds[:1]])


def backwards_halved() -> None:
    change_backwards(lambda seconds: [each / 2 for each in seconds])


def backwards_of_the_first() -> None:
    change_backwards(lambda seconds: [sum(seconds), *[0.0 for _ in seconds[1:]]])


def no_forward_spans() -> None:
    change_times(
        lambda times: dataclasses.replace(
            times, spans=[span for span in times.spans if span.name != "forward"]
        )
    )


def forward_between_steps() -> None:
    """Outputs that a step would have to compute are ready when it begins."""
    from gnnhpc.train.loop import Trainer

    def step(true: Any, trainer: Any, number: int, batch: Any) -> Any:
        with torch.no_grad():
            microbatch = batch.microbatches[0]
            if microbatch.inputs is not None:
                trainer.stage(microbatch.inputs, microbatch.context)
        return true(trainer, number, batch)

    around(Trainer, "_train_step", step)


def busy_between_steps() -> None:
    from gnnhpc.train.loop import Trainer

    def step(true: Any, trainer: Any, *args: Any) -> Any:
        compute(0.2)
        return true(trainer, *args)

    around(Trainer, "_train_step", step)


def a_lost_cpu() -> None:
    if rank() == 1:
        from_late_steps_on(lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))


def one_thread_later() -> None:
    if rank() == 0:
        from_late_steps_on(lambda: torch.set_num_threads(1))


def one_thread_that_says_two() -> None:
    """Torch and the kernels compute on one thread, and torch says that it has two."""
    import ctypes

    from gnnhpc.kernels import vig

    around(torch, "set_num_threads", lambda true, count: true(1))
    torch.get_num_threads = lambda: 2

    def sizes(true: Any, *args: Any) -> Any:
        values = list(true(*args))
        return (ctypes.c_int64 * len(values))(*values[:-1], 1)

    def together(true: Any, layers: int, images: int, _threads: int, *rest: Any) -> None:
        true(layers, images, 1, *rest)

    around(vig, "sizes", sizes)
    for name in ("vig_layers_forward", "vig_layers_backward"):
        around(vig.library(), name, together)


def one_thread_of_torch() -> None:
    torch.get_num_threads = lambda: 2
    around(torch, "set_num_threads", lambda true, count: true(1))


def a_pool_of_its_own() -> None:
    """A thread that computes beside the one that was asked for, as another library's pool would."""
    import zlib

    from gnnhpc.engines import compute_threads

    data = bytes(2**22)

    def compute() -> None:
        while True:
            zlib.crc32(data)

    pool = threading.Thread(target=compute, daemon=True)
    pool.start()
    true = compute_threads._is_worker
    compute_threads._is_worker = lambda number, own: number == pool.native_id or true(number, own)


def torch_in_place_of_kernels() -> None:
    from gnnhpc.kernels import gat as kernel

    if rank() == 1:
        from_late_steps_on(lambda: setattr(kernel, "fits", lambda x: False))


def another_library() -> None:
    """The same functions of another file, such as one for other instructions."""
    import shutil
    import tempfile

    from gnnhpc.kernels import build, vig

    def switch() -> None:
        library = build.load_kernel("vig")
        assert library is not None
        folder = Path(tempfile.mkdtemp())
        copy = shutil.copy(library._name, folder / "vig-other.so")
        other = build._open(Path(copy))
        vig.load_kernel = lambda name: other

    if rank() == 1:
        from_late_steps_on(switch)


def file_of_other_steps() -> None:
    from gnnhpc.records.schema import StepRecord
    from gnnhpc.records.writer import RecordWriter

    def write(true: Any, writer: Any, *records: Any) -> None:
        better = [
            dataclasses.replace(each, wall_s=each.wall_s / 2)
            if isinstance(each, StepRecord)
            else each
            for each in records
        ]
        true(writer, *better)

    around(RecordWriter, "write", write)


ONE, TWO = {"GNNHPC_THREADS": "1"}, {"GNNHPC_THREADS": "2"}
PLANTED: dict[str, tuple[Callable[[], None], Experiment, dict[str, str], tuple[str, str, str]]] = {
    "stopped before backward": (
        stopped_before_backward,
        vig(layout="pp2"),
        ONE,
        ("step times", "invalid", "backward of micro-batches in no backward span"),
    ),
    "zeroed for long": (
        zeroed_for_long,
        vig(layout="pp2"),
        ONE,
        ("spans", "suspect", "optimizer spans of"),
    ),
    "comes after the sum": (
        comes_after_the_sum,
        vig(layout="dp2"),
        ONE,
        ("step times", "invalid", "an all-reduce that begins after its sum over replicas in 6"),
    ),
    "sleeps after the sum": (
        sleeps_after_the_sum,
        gat(layout="dp2"),
        ONE,
        ("spans", "suspect", "s lie after these had ended"),
    ),
    "sleeps before the sum": (
        sleeps_before_the_sum,
        vig(layout="dp2"),
        ONE,
        ("spans", "suspect", "s lie before their sums over replicas began"),
    ),
    "a tenth of the sum": (
        a_tenth_of_the_sum,
        gat(layout="dp2"),
        ONE,
        ("step times", "invalid", "an all-reduce that ends before its sum over replicas in 6"),
    ),
    "buckets begun late": (
        buckets_begun_late,
        vig(layout="dp2", bucket_mib=1e-4),
        ONE,
        ("spans", "suspect", "s lie beside them"),
    ),
    "torch sums late": (
        torch_sums_late,
        vig(layout="dp2-pp2", engine="pipelining"),
        ONE,
        ("spans", "suspect", "s lie before their sums over replicas began"),
    ),
    "torch sums forgotten": (
        a_tenth_of_the_sum,
        vig(layout="dp2-pp2", engine="pipelining"),
        ONE,
        ("step times", "invalid", "an all-reduce that ends before its sum over replicas in 6"),
    ),
    **{
        f"{name}, {where}": (
            plant,
            experiment,
            ONE,
            ("step times", "invalid", "backward seconds of layers that these did not take in"),
        )
        for name, plant, cells in (
            (
                "backwards of the next",
                backwards_of_the_next,
                {
                    "vig seq": vig(layout="seq"),
                    "gat 1f1b": gat(layout="pp2", schedule="1f1b"),
                    "gat zero-bubble": gat(layout="pp2", schedule="zero-bubble"),
                    "gat of torch": gat(layout="pp2", engine="pipelining"),
                },
            ),
            (
                "backwards halved",
                backwards_halved,
                {
                    "gat seq": gat(layout="seq"),
                    "vig 1f1b": vig(layout="pp2", schedule="1f1b"),
                    "vig computed again": vig(layout="pp2", activation_checkpointing="always"),
                    "vig of torch": vig(layout="pp2", engine="pipelining"),
                },
            ),
            (
                "backwards of the first",
                backwards_of_the_first,
                {
                    "vig pp2": vig(layout="pp2"),
                    "gat computed again": gat(layout="seq", activation_checkpointing="always"),
                    "gat dp2": gat(layout="dp2"),
                },
            ),
        )
        for where, experiment in cells.items()
    },
    "started after forward": (
        started_after_forward,
        gat(layout="seq"),
        ONE,
        ("step times", "invalid", "work before the clock was started"),
    ),
    "half a wall": (
        half_a_wall,
        vig(layout="dp2"),
        ONE,
        ("step times", "invalid", "recorded as 0.50"),
    ),
    "slow clock": (
        slow_clock,
        vig(layout="pp2", engine="pipelining"),
        ONE,
        ("step times", "invalid", "its clock ran at 0.80 of a second clock's rate"),
    ),
    "busy twice": (
        busy_twice,
        gat(layout="pp2"),
        ONE,
        ("step times", "invalid", "time counted twice"),
    ),
    "no forward spans": (
        no_forward_spans,
        vig(layout="seq"),
        ONE,
        ("step times", "invalid", "forward of micro-batches in no forward span"),
    ),
    "forward between steps": (
        forward_between_steps,
        gat(layout="dp2"),
        ONE,
        ("step times", "invalid", "work between the steps in 5 steps, first 1 forward"),
    ),
    "busy between steps": (
        busy_between_steps,
        vig(layout="seq"),
        ONE,
        ("between_steps", "suspect", "s between two steps"),
    ),
    "a lost CPU": (
        a_lost_cpu,
        vig(layout="dp2"),
        ONE,
        ("affinity", "suspect", "rank 1: a computing thread had fewer CPUs than before"),
    ),
    "one thread later": (
        one_thread_later,
        vig(layout="seq"),
        TWO,
        ("threads", "invalid", "rank 0 ran 1 threads from train step 3 on, 2 were asked for"),
    ),
    "one thread that says two": (
        one_thread_that_says_two,
        vig(layout="seq"),
        TWO,
        ("threads_used", "suspect", "rank 0 computed with 1 threads in 4 of 4 steps"),
    ),
    "one thread of torch": (
        one_thread_of_torch,
        vig(
            layout="seq",
            model=VIG["model"] | {"implementation": "reference"},
            data=VIG["data"] | {"image_size": 32},
        ),
        TWO,
        ("threads_used", "suspect", "rank 0 computed with 1 threads in 4 of 4 steps"),
    ),
    "a pool of its own": (
        a_pool_of_its_own,
        vig(layout="seq"),
        ONE,
        ("threads_used", "invalid", "rank 0 computed with 2 threads in"),
    ),
    "torch in place of kernels": (
        torch_in_place_of_kernels,
        gat(layout="dp2"),
        ONE,
        ("kernels", "invalid", "rank 1: kernels called otherwise than in the first train step"),
    ),
    "another library": (
        another_library,
        vig(layout="dp2"),
        ONE,
        ("kernels", "invalid", "vig_forward of vig-other"),
    ),
    "a file of other steps": (
        file_of_other_steps,
        vig(layout="seq"),
        ONE,
        ("records", "invalid", "s of steps, rank 0 measured"),
    ),
}

SHOWN_TOO = {
    # Without spans of backward a stage looks as if it had none.
    "stopped before backward": {"gradients"},
    "one thread later": {"threads_used"},
    # It calls the kernels there.
    "forward between steps": {"kernels"},
}


def done(root: Path, experiment: Experiment, env: dict[str, str], plant: Any = None) -> Ran:
    (cell,) = manifest_of(root, experiment)
    ran = run(root, cell, plant=plant, env=env)
    if any(ran.statuses):
        raise GnnhpcError("\n".join(ran.err))
    return ran


def complaints(ran: Ran) -> list[Check]:
    return [check for check in ran.result.audit if check.verdict in ("invalid", "suspect")]


def test_tensors_too_small_for_a_second_thread_accuse_nobody(tmp_path: Path) -> None:
    """Torch computes 16 pixels on one thread, whatever it is set to."""
    small = vig(
        layout="seq",
        dtype="float64",
        data=VIG["data"] | {"image_size": 4},
        batch_size=4,
    )
    found = {check.name: check for check in done(tmp_path, small, TWO).result.audit}
    assert found["threads_used"].verdict == "ok", found["threads_used"]


@pytest.mark.quick("half a wall", "busy twice", "forward between steps", "no forward spans")
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_named(tmp_path: Path, name: str) -> None:
    plant, experiment, env, (check, verdict, words) = PLANTED[name]
    found = {each.name: each for each in complaints(done(tmp_path, experiment, env, plant))}
    assert check in found, found
    assert found[check].verdict == verdict
    assert words in found[check].detail
    others = {other for other in found if other not in NOT_HERE and other != check}
    assert others <= SHOWN_TOO.get(name, set()), found


HEALTHY = {
    **{f"vig {layout}": vig(layout=layout) for layout in ("seq", "pp2", "dp2", "dp2-pp2")},
    **{f"gat {layout}": gat(layout=layout) for layout in ("seq", "pp2", "dp2", "dp2-pp2")},
    **{
        f"{name} pp2, {words}": kind(layout="pp2", **changes)
        for name, kind in (("vig", vig), ("gat", gat))
        for words, changes in (
            ("1f1b", {"schedule": "1f1b"}),
            ("zero-bubble", {"schedule": "zero-bubble"}),
            ("computed again", {"activation_checkpointing": "always"}),
            (
                "computed again by torchgpipe",
                {"activation_checkpointing": "always", "engine": "torchgpipe"},
            ),
        )
    },
    **{
        f"{name} dp2, a bucket a layer": kind(layout="dp2", bucket_mib=1e-4)
        for name, kind in (("vig", vig), ("gat", gat))
    },
    **{
        f"{name} {layout} of torch": kind(layout=layout, engine="pipelining")
        for name, kind in (("vig", vig), ("gat", gat))
        for layout in ("pp2", "dp2-pp2")
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_not_accused(tmp_path: Path, name: str) -> None:
    found = complaints(done(tmp_path, HEALTHY[name], ONE))
    assert {check.name for check in found} <= NOT_HERE, found


@pytest.mark.parametrize(
    ("name", "env"),
    [pytest.param("vig seq", TWO, marks=pytest.mark.slow), ("gat pp2", ONE)],
)
def test_on_a_busy_machine_only_its_being_busy_is_told(
    tmp_path: Path, name: str, env: dict[str, str]
) -> None:
    """Beside processes that keep every CPU busy."""
    burn = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burn) for _ in os.sched_getaffinity(0)]
    try:
        found = complaints(done(tmp_path, HEALTHY[name], env))
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert {check.name for check in found} <= NOT_HERE, found
    noisy = [check.detail for check in found if check.name == "noisy"]
    assert noisy
    assert "while other processes had its processors" in noisy[0]
