"""The audit: a good run passes every check, and each check is made to say what it must."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnnhpc.batches.batch import Batch
from gnnhpc.check.audit import audit
from gnnhpc.check.audits.machine import TORCH_GRAIN
from gnnhpc.check.observations import RankObservations, rank_observations
from gnnhpc.check.observer import RunObserver
from gnnhpc.check.plain.parts import held_by
from gnnhpc.check.watches.gradient_norms import GradientNorms, GradientNormsWatch
from gnnhpc.check.watches.processor_use import ProcessorUse
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.core.layout import Layout
from gnnhpc.engines.timing import Span, StepTimes
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import cut
from gnnhpc.records.schema import Check, StepRecord

EXPERIMENT = Experiment.model_validate(
    {
        "model": {"name": "vig", "blocks": 2},
        "data": {"name": "synthetic-cifar10"},
        "batch_size": 10,
        "layout": "dp2-pp2",
    }
)
LAYOUT = EXPERIMENT.layout
OUTLINES = EXPERIMENT.model.outline(EXPERIMENT.data.facts())
PLANNED = cut(EXPERIMENT)
HELD_BY = held_by(EXPERIMENT)
STEPS = 12


def held(stage: int) -> list[LayerSpec]:
    return [OUTLINES[i] for i in PLANNED[stage]]


def good(rank: int) -> RankObservations:
    layers = held(LAYOUT.stage_of(rank))
    return RankObservations(
        rank=rank,
        host=f"n{rank}",
        layers=[layer.name for layer in layers],
        parameters=sum(layer.parameters for layer in layers),
        trained_parameters=sum(layer.parameters for layer in layers),
        implementation="fused/c++",
        calls={"vig-abc vig_forward": 4},
        threads={1: "train step 0"},
        threads_wanted=1,
        cpus=[0, 1],
        mismatched_batches=0,
        unequal_gradients=0,
        differing_losses=0,
        repeated_samples=0,
        unused_samples=0,
        samples=10,
        backward_s=1.0,
        overfull_steps=0,
        overlapping_steps=0,
        all_steps_s=1.5,
        gradient_norms=GradientNorms(0.5, STEPS),
        reductions=STEPS,
        train_steps=STEPS,
        step_s=[1.0] * STEPS,
        step_compute_s=[0.8] * STEPS,
        step_cpu_s=[0.8] * STEPS,
        cpu_share=1.0,
        compute_share=0.8,
        steal_share=0.0,
        run_delay_share=0.0,
        switches=3,
        observing_s=0.01,
        run_s=2.0,
    )


GRAPH = {"mode": "halo", "edges_kept": 1.0}


def checks(
    changes: dict[int, dict[str, Any]] | None = None,
    graph: dict[str, Any] | None = None,
    planned: list[range] | None = None,
) -> dict[str, Check]:
    """The verdicts by name, where some ranks found something else than a good run does."""
    findings = [replace(good(rank), **(changes or {}).get(rank, {})) for rank in range(4)]
    found = audit(findings, OUTLINES, LAYOUT, planned or PLANNED, HELD_BY, graph or {})
    return {check.name: check for check in found}


def everywhere(**changes: Any) -> dict[int, dict[str, Any]]:
    return dict.fromkeys(range(4), changes)


def test_a_good_run_passes_every_check() -> None:
    found = checks(graph=GRAPH)
    assert {check.verdict for check in found.values()} == {"ok"}
    assert set(found) == {
        *("parameters", "cut", "labels", "samples", "replicas", "gradients", "loss"),
        *("step times", "all-reduce", "kernels", "threads", "noise", "drift", "cost", "edges"),
        *("threads_used", "affinity", "memory", "between_steps", "spans", "slowed"),
    }


BAD: dict[str, tuple[str, dict[int, dict[str, Any]], str]] = {
    "parameters": ("invalid", {3: {"parameters": 7}}, "in the model"),
    "cut": (
        "invalid",
        {1: {"layers": [layer.name for layer in held(1)][1:]}},
        "ranks [1] do not hold the layers planned",
    ),
    "labels": (
        "invalid",
        everywhere(mismatched_batches=3),
        "3 mini-batches that are not the same on all stages: labels or edges are not those of the "
        "inputs",
    ),
    "samples": (
        "invalid",
        everywhere(repeated_samples=40),
        "40 samples were seen more than once in an epoch: replicas are not sharded",
    ),
    "replicas": (
        "invalid",
        everywhere(unequal_gradients=2),
        "gradient norms differed between replicas in 2 steps and stages",
    ),
    "loss": (
        "invalid",
        everywhere(differing_losses=5),
        "in 5 steps the loss that was differentiated",
    ),
    "all-reduce": (
        "suspect",
        {2: {"reductions": 4 * STEPS}},
        "rank 2 reduced 48 times in 12 steps, 1 a step expected",
    ),
    "threads": (
        "invalid",
        {2: {"threads": {1: "train step 0", 28: "test step 1"}}},
        "rank 2 ran 28 threads from test step 1 on, 1 were asked for",
    ),
    "oversubscribed": (
        "suspect",
        everywhere(host="n1"),
        "n1: 4 threads on 2 CPUs",
    ),
    "noisy": ("suspect", {3: {"steal_share": 0.07}}, "rank 3: 7.0% stolen by the host"),
    "drift": (
        "suspect",
        {0: {"step_s": [1.0] * 8 + [1.25] * 4}},
        "from step 9 on, of 12 after the warm-up, steps took +25%: not of computing, but of "
        "transfers and waiting",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_each_check_says_what_it_must(name: str) -> None:
    verdict, changes, detail = BAD[name]
    found = checks(changes)
    assert found[name].verdict == verdict
    assert detail in found[name].detail
    others = [check.verdict for check in found.values() if check.name != name]
    assert set(others) == {"ok"}, "and says nothing about anything else"


@pytest.mark.parametrize(
    "silent",
    [
        {"gradient_norms": GradientNorms(None, STEPS, 0, STEPS, 0)},
        {"gradient_norms": GradientNorms(None, STEPS, 6, STEPS, 6)},
        {"gradient_norms": GradientNorms(0.0, STEPS, 0, STEPS, 0)},
        {"gradient_norms": GradientNorms(float("nan"), STEPS)},
        {"backward_s": 0.0},
    ],
)
def test_a_stage_that_does_not_learn(silent: dict[str, Any]) -> None:
    found = checks({0: silent, 2: silent})["gradients"]
    assert found.verdict == "invalid"
    assert "ranks [0, 2] have parameters but no gradient" in found.detail


def test_a_stage_that_has_no_gradient_in_the_twin_either_is_told_of() -> None:
    """All of its layers must be without: one that learns in the twin has a gradient to lose."""
    zero = {"gradient_norms": GradientNorms(0.0, STEPS, 0, STEPS, 0)}
    findings = [replace(good(rank), **(zero if rank == 0 else {})) for rank in range(4)]
    names = [layer.name for layer in held(LAYOUT.stage_of(0)) if layer.parameters != 0]
    for dead, verdict in ((names, "suspect"), (names[1:], "invalid")):
        found = {c.name: c for c in audit(findings, OUTLINES, LAYOUT, PLANNED, HELD_BY, {}, dead)}
        assert found["gradients"].verdict == verdict
    silent = [replace(findings[0], backward_s=0.0), *findings[1:]]
    found = {c.name: c for c in audit(silent, OUTLINES, LAYOUT, PLANNED, HELD_BY, {}, names)}
    assert found["gradients"].verdict == "invalid"


@pytest.mark.parametrize(
    ("norms", "when"),
    [
        (GradientNorms(0.0, STEPS, 0, STEPS - 1, 1), "from step 1 on"),
        (GradientNorms(0.5, STEPS, 0, 1, None), f"in 1 of {STEPS} steps"),
        # What it went on from may have had no gradient already.
        (GradientNorms(0.0, STEPS, 6, STEPS, 6), "from step 6 on"),
    ],
)
def test_a_stage_that_learns_no_more(norms: GradientNorms, when: str) -> None:
    found = checks({0: {"gradient_norms": norms}, 2: {"gradient_norms": norms}})["gradients"]
    assert found.verdict == "suspect"
    assert f"no gradient {when} on ranks [0, 2]: " in found.detail


def test_steps_without_a_gradient_are_counted() -> None:
    watch = GradientNormsWatch()
    for step, norm in enumerate([0.0, 2.0, None, 0.0], start=3):
        watch.add(step, norm)
    assert watch.seen() == GradientNorms(0.0, 4, 3, 3, 5)
    watch.add(7, 1.0)
    assert watch.seen() == GradientNorms(0.5, 5, 3, 3, None)


def test_a_stage_with_nothing_to_learn_needs_no_gradient() -> None:
    nothing = {
        "trained_parameters": 0,
        "gradient_norms": GradientNorms(None, STEPS, 0, STEPS, 0),
        "backward_s": 0.0,
        "reductions": 0,
    }
    found = checks({1: nothing, 3: nothing})
    assert found["gradients"].verdict == "ok"
    assert found["all-reduce"].verdict == "ok"


def test_layers_left_out_or_dealt_twice_are_no_cut() -> None:
    for planned in ([range(2), range(3, 5)], [range(3), range(2, 5)]):
        names = [[OUTLINES[i].name for i in part] for part in planned]
        held_now = {rank: {"layers": names[LAYOUT.stage_of(rank)]} for rank in range(4)}
        assert checks(held_now, planned=planned)["cut"].verdict == "invalid"


def test_processor_time_short_of_computing_time_is_noise_on_one_thread_only() -> None:
    def detail(**changes: float | None) -> str:
        return checks({1: {"cpu_share": 0.9} | changes})["noisy"].detail

    share = "rank 1: 90% processor time of computing time; "
    assert detail() == share + "it slept for the rest: page faults or storage"
    # 8 % of its steps are missing.
    assert detail(run_delay_share=0.045) == share + "other threads had its processors"
    assert detail(run_delay_share=None) == share + "what took the rest is not known"
    several = everywhere(threads={2: "train step 0"}, threads_wanted=2, cpu_share=0.9)
    assert checks(several)["noise"].verdict == "ok"


@pytest.mark.parametrize("threads", [1, 2])
def test_time_without_a_processor_is_noise_on_any_number_of_threads(threads: int) -> None:
    changes = {"threads_wanted": threads, "threads": {threads: "train step 0"}}
    changes |= {"run_delay_share": 0.2}
    assert checks({2: changes | {"cpu_share": 0.7}})["noisy"].detail == (
        "rank 2 was ready to run for 20.0% of its steps while other threads had its processors"
    )


def used(by_anybody_s: float, by_process_s: float, resolution_s: float = 0.04) -> ProcessorUse:
    return ProcessorUse(10.0, by_anybody_s, by_process_s, resolution_s)


@pytest.mark.parametrize(
    ("neighbour", "by_anybody_s", "accused"),
    [
        # Of the 20 s of two processors 3 are neither this rank's nor its neighbour's.
        ({"host": "n2"}, 19.0, True),
        # Its neighbour's threads had them, in transferring.
        ({"host": "n2"}, 16.1, False),
        # On another host it cannot have.
        ({}, 16.1, True),
        # On this one, but on other processors.
        ({"host": "n2", "cpus": [2, 3]}, 16.1, True),
    ],
)
def test_a_lack_of_processors_is_noise_where_others_had_them(
    neighbour: dict[str, Any], by_anybody_s: float, accused: bool
) -> None:
    changes = {
        2: {"run_delay_share": 0.12, "processor_use": used(by_anybody_s, 9.0)},
        3: neighbour | {"processor_use": used(by_anybody_s, 7.0)},
    }
    found = checks(changes)
    if accused:
        assert found["noisy"].detail == (
            "rank 2 was ready to run for 12.0% of its steps while other processes had its "
            "processors"
        )
    else:
        assert found["noise"].verdict == "ok"


@pytest.mark.parametrize(("by_anybody_s", "accused"), [(9.9, True), (9.1, False)])
def test_processor_time_that_is_missing_is_noise_where_others_had_it(
    by_anybody_s: float, accused: bool
) -> None:
    changes = {"cpu_share": 0.9, "run_delay_share": 0.045}
    found = checks({1: changes | {"processor_use": used(by_anybody_s, 9.0)}})
    assert ("noisy" in found) is accused
    if accused:
        assert "; other processes had its processors" in found["noisy"].detail


def test_what_the_clock_cannot_resolve_accuses_nobody() -> None:
    use = used(11.0, 9.0, resolution_s=2.0)
    assert "noise" in checks({1: {"run_delay_share": 0.06, "processor_use": use}})
    assert "noisy" in checks({1: {"run_delay_share": 0.06, "processor_use": used(11.0, 9.0)}})


def test_few_steps_cannot_tell_a_drift() -> None:
    assert checks({0: {"step_s": [1.0] * 8}})["drift"].verdict == "unknown"


@pytest.mark.parametrize(
    ("step_s", "verdict"),
    [
        ([1.0] * 8 + [1.04] * 4, "ok"),
        ([1.0] * 8 + [0.93] * 4, "suspect"),
        ([1.0] * 4 + [1.1] * 4 + [1.0] * 4, "suspect"),
        ([1.0] * 4 + [1.1] + [1.0] * 7, "ok"),
    ],
    ids=["little", "a faster end", "a slow middle", "a slow step"],
)
def test_drift_is_a_stretch_at_another_level(step_s: list[float], verdict: str) -> None:
    assert checks({0: {"step_s": step_s}})["drift"].verdict == verdict


SLOWER = [1.0] * 8 + [1.25] * 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"step_compute_s": SLOWER, "step_cpu_s": SLOWER},
            "rank 3 computed for another processor time: other work, clock rate or memory",
        ),
        (
            {"step_compute_s": SLOWER},
            "rank 3 had its processors for another share of its computing time",
        ),
    ],
)
def test_a_drift_names_the_rank_and_what_changed(changes: dict[str, Any], words: str) -> None:
    found = checks({0: {"step_s": SLOWER}, 3: changes})["drift"]
    assert found.detail == f"from step 9 on, of 12 after the warm-up, steps took +25%: {words}"


SINGLE = {"threads_used": {1: 6}, "threads_wanted": 2, "threads": {2: "train step 0"}}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"largest_tensor": TORCH_GRAIN, "calls": {}}, "ok"),
        ({"largest_tensor": TORCH_GRAIN, "calls": {"torch vig_forward": 4}}, "ok"),
        ({"largest_tensor": TORCH_GRAIN, "calls": {"vig-avx2 vig_forward": 4}}, "suspect"),
        ({"largest_tensor": TORCH_GRAIN + 1, "calls": {}}, "suspect"),
        ({}, "suspect"),
        ({"threads_used": {1: 1}}, "ok"),
        ({"threads_used": {1: 1, 2: 5}}, "ok"),
        ({"threads_used": {1: 2}}, "suspect"),
        ({"threads_used": {3: 1}}, "invalid"),
        ({"threads_used": {3: 6}, "largest_tensor": TORCH_GRAIN}, "invalid"),
    ],
)
def test_one_thread_is_told_where_more_would_have_had_work(
    changes: dict[str, Any], verdict: str
) -> None:
    found = checks({1: SINGLE | changes})["threads_used"]
    assert found.verdict == verdict, found
    words = "but on ranks [1], whose tensors torch leaves to one thread"
    assert (words in found.detail) is (verdict == "ok" and "largest_tensor" in changes)


def test_edges_that_chunks_lost_are_told() -> None:
    found = checks(graph={"mode": "contiguous", "edges_kept": 0.302})["edges-lost"]
    assert (found.verdict, found.detail) == (
        "suspect",
        "contiguous chunks kept 30.2% of the edges",
    )


# What a rank observes while the steps go by.


def batch(*samples: int, epoch: int = 0) -> Batch:
    return Batch((), 0, len(samples), epoch, np.array(samples), 0)


def observations(layout: str = "dp2-pp2", rank: int = 0) -> RunObserver:
    return RunObserver(Layout.parse(layout), 1, rank, total_samples=10)


def finding(observer: RunObserver, name: str) -> Any:
    known = {
        k: getattr(good(0), k)
        for k in (
            "host",
            "layers",
            "parameters",
            "trained_parameters",
            "implementation",
            "threads_wanted",
            "samples",
            "repeated_samples",
            "unused_samples",
            "reductions",
        )
    }
    return getattr(rank_observations(observer, **known), name)


def test_batches_of_all_stages_are_compared_in_each_replica() -> None:
    observer = observations()
    norms = [1.0] * 4
    observer.compare_ranks([5.0, 5.0, 7.0, 7.0], norms)
    assert finding(observer, "mismatched_batches") == 0
    observer.compare_ranks([5.0, 6.0, 7.0, 7.0], norms)
    observer.compare_ranks([5.0, 5.0, 7.0, 5.0], norms)
    assert finding(observer, "mismatched_batches") == 2
    # Under ZBV the first stage holds the model's end too, and another batch can be between.
    there_and_back = RunObserver(Layout.parse("pp3"), 0, 0, total_samples=10)
    there_and_back.compare_ranks([5.0, 6.0, 5.0], None)
    assert finding(there_and_back, "mismatched_batches") == 1


def test_gradient_norms_are_compared_to_the_bit_between_replicas_of_a_stage() -> None:
    observer = observations()
    same = [0.0] * 4
    observer.compare_ranks(same, [1.0, 2.0, 1.0, 2.0])
    assert finding(observer, "unequal_gradients") == 0
    observer.compare_ranks(same, [1.0, 2.0, 1.0 + 1e-15, 2.0])
    observer.compare_ranks(same, [1.0, 2.0, 2.0, 1.0])
    assert finding(observer, "unequal_gradients") == 3
    observer.compare_ranks(same, None)
    assert finding(observer, "unequal_gradients") == 3


def test_the_loss_reported_is_held_against_the_one_differentiated() -> None:
    observer = observations()
    observer.compare_losses(2.0, 2.0 + 1e-5)
    observer.compare_losses(1.0, float("nan"))
    assert finding(observer, "differing_losses") == 0
    observer.compare_losses(8.0, 2.0)
    observer.compare_losses(float("nan"), 2.0)
    assert finding(observer, "differing_losses") == 2


def test_samples_are_counted_by_epoch() -> None:
    observer = observations()
    observer.observe_gradients(batch(1, 2), 0.5)
    observer.observe_gradients(batch(3, 2), 0.7)
    observer.observe_gradients(batch(2, epoch=1), None)
    uses = observer.sample_uses.epochs()
    assert [each.repeated for each in uses.values()] == [1, 0]
    bits = [np.unpackbits(np.frombuffer(each.used, dtype=np.uint8))[:10] for each in uses.values()]
    assert bits[0].tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert bits[1].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert finding(observer, "gradient_norms") == GradientNorms(0.6, 3, 0, 1, 0)
    assert finding(observer, "train_steps") == 3


def record(
    phase: str = "train", *, warmup: bool = False, start: float = 0.0, wall: float = 0.0
) -> StepRecord:
    seconds = dict.fromkeys(
        ("cpu_s", "forward_s", "backward_s", "allreduce_s", "optimizer_s", "wait_s", "data_s"), 0.0
    ) | {"start_s": start, "wall_s": wall}
    return StepRecord(phase=phase, step=0, epoch=0, warmup=warmup, samples=1, **seconds)  # type: ignore[arg-type]


def times(wall: float, cpu: float, steal: float | None = 0.0) -> StepTimes:
    spans = [Span("forward", 0, 0.0, 1.0), Span("wait", 0, 1.0, 2.0), Span("backward", 0, 2.0, 4.0)]
    return StepTimes(wall, cpu, spans, {}, 5, steal, waiting_cpu_s=0.0, run_delay_s=0.5)


def test_ranks_that_computed_by_different_code_are_found() -> None:
    in_torch = {"implementation": "fused/torch", "calls": {"torch vig_forward": 4}}
    found = checks({2: in_torch})["kernels"]
    assert found.verdict == "invalid"
    assert found.detail == (
        "ranks computed by different code: fused/c++ on ranks [0, 1, 3], fused/torch on ranks [2]"
    )


@pytest.mark.parametrize(
    ("calls", "wrong"),
    [
        ({"triton sum_rows": 4, "triton drop_rows": 2}, None),
        (
            {"triton sum_rows": 4, "torch sum_rows_backward": 4},
            "and called torch sum_rows_backward",
        ),
        ({"triton sum_rows": 4, "gat-1f attend_forward": 4}, "and called gat-1f attend_forward"),
        ({"triton drop_rows": 4}, "ranks say fused/triton and called no kernel"),
    ],
)
def test_layers_said_to_be_tritons_are(calls: dict[str, int], wrong: str | None) -> None:
    found = checks(everywhere(implementation="fused/triton", calls=calls))["kernels"]
    assert found.verdict == ("invalid" if wrong else "ok")
    assert wrong is None or wrong in found.detail


def test_a_rank_pinned_to_fewer_cpus_than_threads_is_named() -> None:
    """Though all ranks of its host together have enough."""
    hosts = {rank: {"host": "n", "cpus": [0, 1, 2, 3]} for rank in range(4)}
    hosts[3] |= {"cpus": [0], "threads": {2: "train step 0"}, "threads_wanted": 2}
    hosts[0] |= {"cpus": list(range(8))}
    found = checks(hosts)["oversubscribed"]
    assert "rank 3 on n: 2 threads on the 1 CPUs it may use" in found.detail


def test_names_of_hosts_that_are_of_one_machine_share_its_cpus() -> None:
    """As several Slurm daemons of one machine have them, or containers."""
    one = everywhere(system="booted-once")
    detail = checks(one)["oversubscribed"].detail
    assert detail == "n0, n1, n2, n3 (one machine): 4 threads on 2 CPUs"
    apart = {rank: {**one[rank], "cpus": [2 * rank, 2 * rank + 1]} for rank in range(4)}
    assert checks(apart)["threads"].verdict == "ok"


def test_data_workers_that_had_a_cpu_each_in_a_rank_alone_are_counted() -> None:
    one = {rank: {"system": f"s{rank // 2}", "workers": 1} for rank in range(4)}
    detail = checks(one)["oversubscribed"].detail
    assert detail == (
        "n0, n1 (one machine): 2 threads and 2 data workers on 2 CPUs; "
        "n2, n3 (one machine): 2 threads and 2 data workers on 2 CPUs"
    )
    alone = {rank: {"workers": 1} for rank in range(4)}
    assert checks(alone)["threads"].verdict == "ok"
    bound = {rank: {"workers": 1, "cpus": [rank]} for rank in range(4)}
    assert checks(bound)["threads"].verdict == "ok", "no rank has a CPU for it in any layout"


@pytest.mark.parametrize("wall", [2.9, -1.0, float("nan")])
def test_a_step_shorter_than_what_was_done_in_it_is_found(wall: float) -> None:
    observer = observations()
    observer.observe_times(record(warmup=True, wall=3.0), times(3.0, 3.0))
    assert finding(observer, "overfull_steps") == 0
    observer.observe_times(record(start=3.0, wall=wall), times(wall, 3.0))
    assert finding(observer, "overfull_steps") == 1


def test_a_step_that_begins_within_the_one_before_is_found() -> None:
    observer = observations()
    for start in (0.0, 3.0, 5.9, float("nan")):
        observer.observe_times(record(start=start, wall=3.0), times(3.0, 3.0))
    assert finding(observer, "overlapping_steps") == 2
    assert finding(observer, "all_steps_s") == 12.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"overfull_steps": 2}, "rank 1 computed longer than 2 steps lasted"),
        ({"overlapping_steps": 3}, "3 steps of rank 1 began before their time"),
        ({"all_steps_s": 2.5}, "the steps of rank 1 add up to 2.500 s of a run of 2.000 s"),
        ({"all_steps_s": float("nan")}, "the steps of rank 1 add up to nan s"),
    ],
)
def test_times_that_contradict_each_other_are_invalid(changes: dict[str, Any], words: str) -> None:
    found = checks({1: changes})["step times"]
    assert (found.verdict, words in found.detail) == ("invalid", True), found.detail
    assert checks()["step times"].verdict == "ok"


def test_shares_are_over_steps_that_are_no_warm_up() -> None:
    observer = observations()
    observer.observe_times(record(warmup=True), times(100.0, 100.0))
    observer.observe_times(record(), times(5.0, 2.7, steal=0.5))
    observer.observe_times(record("test"), times(5.0, 2.7, steal=0.0))
    assert finding(observer, "step_s") == [5.0]
    assert finding(observer, "backward_s") == 2.0
    assert finding(observer, "cpu_share") == pytest.approx(0.9)
    assert finding(observer, "steal_share") == pytest.approx(0.05)
    assert finding(observer, "run_delay_share") == pytest.approx(0.1)
    assert finding(observer, "compute_share") == pytest.approx(0.6)
    assert finding(observer, "step_compute_s") == [3.0]
    assert finding(observer, "step_cpu_s") == [2.7]
    assert finding(observer, "switches") == 10


def test_what_the_system_does_not_say_is_missing_and_no_number() -> None:
    observer = observations()
    assert finding(observer, "cpu_share") is None
    assert finding(observer, "steal_share") is None
    assert finding(observer, "gradient_norms") == GradientNorms(None, 0)
    observer.observe_times(record(), times(5.0, 3.0, steal=0.5))
    observer.observe_times(record(), times(5.0, 3.0, steal=None))
    assert finding(observer, "steal_share") is None


def test_what_the_audit_costs_is_said() -> None:
    found = checks({2: {"observing_s": 0.02}})["cost"]
    assert found.verdict == "ok"
    assert found.detail.startswith("the audit took 1.00% of the time")


def test_ranks_that_share_a_gpu_are_suspect_and_a_cpu_has_none() -> None:
    assert "shared_gpu" not in checks()
    own = {rank: {"gpu": f"GPU-{rank}"} for rank in range(4)}
    assert checks(own)["shared_gpu"].verdict == "ok"
    shared = checks(own | {3: {"gpu": "GPU-1"}})["shared_gpu"]
    assert shared.verdict == "suspect"
    assert shared.detail == "ranks shared a GPU: ranks [1, 3] on GPU-1"


def test_stages_of_one_process_that_share_a_gpu_are_suspect() -> None:
    """As torchgpipe's where they were told to share it."""
    stages = [["embed"], ["readout"]]
    own = {rank: {"gpu": f"GPU-{rank}+GPU-{rank + 4}", "partitions": stages} for rank in range(4)}
    assert checks(own)["shared_gpu"].verdict == "ok"
    one = checks(own | {2: {"gpu": "GPU-2", "partitions": stages}})["shared_gpu"]
    assert one.verdict == "suspect"
    assert one.detail == "rank 2 computed its 2 stages on GPU-2"
    some = checks(own | {3: {"gpu": "GPU-3+GPU-5", "partitions": stages}})["shared_gpu"]
    assert some.detail == "ranks shared a GPU: ranks [1, 3] on GPU-5"
