"""What ranks hold: parameters, and the layers that were planned for them."""

from __future__ import annotations

from collections.abc import Sequence

from gnnhpc.check.observations import RankObservations
from gnnhpc.core.layer_specs import LayerSpec, parameter_count
from gnnhpc.core.layout import Layout
from gnnhpc.records.schema import Check


def parameters(
    observations: Sequence[RankObservations], outlines: Sequence[LayerSpec], layout: Layout
) -> Check:
    expected = parameter_count(outlines)
    built = [
        sum(observations[rank].parameters for rank in layout.pipeline_ranks(replica))
        for replica in range(layout.replicas)
    ]
    wanted = built[0] if expected is None else expected
    comparison = "its outline does not say" if expected is None else f"{expected} in the model"
    return Check(
        "parameters",
        "ok" if all(count == wanted for count in built) else "invalid",
        f"{built} built over the stages of each replica, {comparison}",
        {"expected": expected, "built": built},
    )


def cut(
    observations: Sequence[RankObservations],
    outlines: Sequence[LayerSpec],
    layout: Layout,
    planned: Sequence[range],
    held_by: Sequence[int],
) -> Check:
    """`layout` is that of processes, each of which holds a stage, or all stages; `held_by` are the
    stages that hold the parts `planned`."""
    names = [layer.name for layer in outlines]
    parts = [[names[i] for i in part] for part in planned]
    wrong = []
    for each in observations:
        stage = layout.stage_of(each.rank)
        expected = [part for part, holder in zip(parts, held_by, strict=True) if holder == stage]
        held = [name for part in expected for name in part]
        if (each.partitions or [each.layers], each.layers) != (expected, held):
            wrong.append(each.rank)
    counts = [len(part) for part in planned]
    whole = sorted(i for part in planned for i in part) == list(range(len(names)))
    if wrong or not whole:
        return Check("cut", "invalid", f"ranks {wrong} do not hold the layers planned {counts}", {})
    unit = "part" if 1 < layout.stages < len(planned) else "stage"
    return Check("cut", "ok", f"layers a {unit}: {counts} of {len(names)}", {"balance": counts})
