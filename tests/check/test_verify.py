"""Every layout, schedule and engine computes what one process computes, to rounding."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.layout import Layout, processes_of
from tests.tools.forked import started

pytestmark = pytest.mark.distributed

# Three blocks and a readout are seven layers, nine modules of GAT do not fill two stages evenly,
# and 121 nodes do not make equal chunks.
VIG = [
    *("--model", "vig", "--set", "batch_size=12", "--set", "data.image_size=4"),
    *("--set", "data.train=72", "--set", "data.test=36", "--set", "model.blocks=3"),
    *("--set", "model.grapher_width=8", "--set", "model.ffn_width=12"),
    *("--set", "model.readout_width=8"),
]
GAT = [
    *("--model", "gat", "--set", "data.nodes=121", "--set", "data.edges=500"),
    *("--set", "data.features=24", "--set", "model.layers=3", "--set", "chunks=halo"),
]
MODELS = {"vig": VIG, "gat": GAT}
LAYOUTS = ["seq", "pp2", "pp4", "dp2-pp2", "dp3-pp2"]
SLOW = ("dp3-pp2",)
"""Left to make slow, as dp2-pp2 is replicas of stages too."""
CASES = [
    pytest.param(
        *(model, layout, schedule, engine), marks=pytest.mark.slow if layout in SLOW else ()
    )
    for model in MODELS
    for layout in LAYOUTS
    for schedule in ("gpipe", "1f1b")
    for engine in ("native", "pipelining")
    if layout != "seq" or (schedule, engine) == ("gpipe", "native")
]


def verify(arguments: list[str], layout: str, folder: Path) -> tuple[list[int | None], str]:
    """Exit statuses, and what rank 0 printed."""
    command = ["verify", *arguments, "--layout", layout]
    engine = "torchgpipe" if "engine=torchgpipe" in arguments else "native"
    size = processes_of(Layout.parse(layout), engine).world_size
    with started(command, size, folder) as ranks:
        statuses = ranks.wait()
        return statuses, ranks.out(0) + ranks.err(0)


@pytest.mark.quick(
    "gat-pp2-1f1b-native",
    "vig-dp2-pp2-gpipe-native",
    "gat-dp2-pp2-gpipe-pipelining",
    "vig-seq-gpipe-native",
    "gat-pp4-gpipe-native",
)
@pytest.mark.parametrize(("model", "layout", "schedule", "engine"), CASES)
def test_layout_is_its_sequential_twin(
    model: str, layout: str, schedule: str, engine: str, tmp_path: Path
) -> None:
    microbatches = "4" if layout == "pp4" else "3"
    flags = [*MODELS[model], "--microbatches", microbatches]
    flags += ["--set", f"schedule={schedule}", "--set", f"engine={engine}"]
    statuses, said = verify(flags, layout, tmp_path)
    assert set(statuses) == {0}, said
    assert "PASSED" in said


@pytest.mark.parametrize(
    ("model", "layout", "parts", "microbatches", "more"),
    [
        ("vig", "pp2", 2, 4, []),
        ("vig", "pp2", 3, 2, ["checkpoint=except_last"]),
        pytest.param(
            *("vig", "dp2-pp3", 2, 3, ["batchnorm=deferred", "balance=[1,1,2,1,1,1]"]),
            marks=pytest.mark.slow,
        ),
        ("gat", "pp2", 4, 6, []),
        ("gat", "pp3", 3, 3, ["checkpoint=always"]),
        pytest.param("gat", "dp2-pp2", 2, 2, ["balance=profile"], marks=pytest.mark.slow),
        ("vig", "pp2", 3, 4, ["engine=pipelining"]),
        pytest.param("gat", "pp3", 2, 6, ["engine=pipelining"], marks=pytest.mark.slow),
    ],
)
def test_several_parts_a_stage_are_the_sequential_twin(
    model: str, layout: str, parts: int, microbatches: int, more: list[str], tmp_path: Path
) -> None:
    """Parts of one layer, which may be dropout without parameters, among them."""
    flags = [*MODELS[model], "--microbatches", str(microbatches)]
    for setting in ("schedule=interleaved", f"parts={parts}", *more):
        flags += ["--set", setting]
    statuses, said = verify(flags, layout, tmp_path)
    assert set(statuses) == {0}, said
    assert "PASSED" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "layout", "microbatches", "more"),
    [
        ("vig", "pp2", 3, []),
        ("gat", "pp2", 3, ["chunks=contiguous"]),
        ("gat", "dp2-pp2", 4, ["model.name=gcn", "checkpoint=except_last"]),
        ("gat", "pp3", 5, ["model.name=sage", "data.features=40", "chunks=contiguous"]),
        pytest.param("gat", "pp4", 2, ["model.name=gatv2"], marks=pytest.mark.slow),
        pytest.param("gat", "pp3", 6, ["model.name=resgcn"], marks=pytest.mark.slow),
        ("gat", "pp2", 4, ["model.name=gcn", "engine=pipelining"]),
        pytest.param("vig", "pp3", 4, ["engine=pipelining"], marks=pytest.mark.slow),
        ("vig", "pp2", 3, ["schedule=zbv"]),
        ("gat", "dp2-pp2", 5, ["schedule=zbv", "checkpoint=except_last"]),
        ("gat", "pp2", 1, ["schedule=zbv", "model.name=sage", "data.features=40"]),
        ("gat", "pp3", 4, ["schedule=zbv", "chunks=contiguous"]),
        pytest.param(
            *("gat", "pp4", 8, ["schedule=zbv", "model.name=gcn", "model.layers=8"]),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "vig", "dp2-pp2", 2, ["schedule=zbv", "batchnorm=deferred"], marks=pytest.mark.slow
        ),
        ("gat", "pp2", 4, ["schedule=zbv", "model.name=gatv2", "engine=pipelining"]),
        pytest.param(
            "vig", "pp3", 3, ["schedule=zbv", "engine=pipelining"], marks=pytest.mark.slow
        ),
    ],
)
def test_split_backward_are_the_sequential_twin(
    model: str, layout: str, microbatches: int, more: list[str], tmp_path: Path
) -> None:
    """Also where what was received must be kept until the weights' gradients are computed; torch's
    engine leaves them to be computed as ours does."""
    flags = [*MODELS[model], "--microbatches", str(microbatches)]
    for setting in ("schedule=zero-bubble", *more):
        flags += ["--set", setting]
    statuses, said = verify(flags, layout, tmp_path)
    assert set(statuses) == {0}, said
    assert "PASSED" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "layout", "engine", "checkpoint"),
    [
        ("vig", "pp4", "torchgpipe", "except_last"),
        ("gat", "dp2-pp2", "torchgpipe", "always"),
        ("vig", "dp2-pp2", "native", "always"),
        ("gat", "seq", "native", "except_last"),
    ],
)
def test_what_is_computed_again_is_the_twins_too(
    model: str, layout: str, engine: str, checkpoint: str, tmp_path: Path
) -> None:
    flags = [*MODELS[model], "--microbatches", "3", "--set", f"engine={engine}"]
    statuses, said = verify([*flags, "--set", f"checkpoint={checkpoint}"], layout, tmp_path)
    assert set(statuses) == {0}, said
    assert "PASSED" in said


@pytest.mark.parametrize("model", MODELS)
def test_twin_in_double_precision(model: str, tmp_path: Path) -> None:
    flags = [*MODELS[model], "--microbatches", "3", "--float64"]
    statuses, said = verify(flags, "dp2-pp2", tmp_path)
    assert set(statuses) == {0}, said
    assert "tolerance 1e-10" in said


@pytest.mark.slow
def test_a_layer_on_a_stage_of_its_own_without_parameters(tmp_path: Path) -> None:
    """The published cut leaves dropout alone on the first and third stage."""
    flags = ["--model", "gat", "--set", "data.nodes=80", "--set", "data.edges=300"]
    flags += ["--microbatches", "4", "--set", "balance=[1,2,1,2]"]
    for engine in ("native", "pipelining"):
        statuses, said = verify([*flags, "--set", f"engine={engine}"], "pp4", tmp_path / engine)
        assert set(statuses) == {0}, said


def test_deferred_statistics_and_a_measured_cut(tmp_path: Path) -> None:
    flags = [*VIG, "--microbatches", "3", "--set", "batchnorm=deferred", "--set", "balance=profile"]
    statuses, said = verify(flags, "pp2", tmp_path)
    assert set(statuses) == {0}, said
