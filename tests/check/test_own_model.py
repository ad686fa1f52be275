"""A user's own model whose rows depend on one another is computed again in whole micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnhpc.check.watches.evaluation_watch import EvaluationWatch
from gnnhpc.engines.sequential import SequentialEngine
from gnnhpc.engines.stage import Stage
from gnnhpc.models import recomputation
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Result, read_lines
from tests.check.test_rounding_draws import scaled_gradient
from tests.defects.patching import around
from tests.tools.forked import started
from tests.tools.own_models import (
    DROPPING,
    GRAPHS,
    IMAGES,
    MODEL,
    NORMALIZING,
    add_folder,
    checked,
    computing,
    invalid,
)

pytestmark = pytest.mark.distributed

pytestmark = pytest.mark.distributed


@pytest.mark.quick("pp2-2-graphs")
@pytest.mark.parametrize("data", [IMAGES, GRAPHS], ids=["images", "graphs"])
@pytest.mark.parametrize(("layout", "ranks"), [("seq", 1), ("pp2", 2)])
def test_rows_that_depend_on_a_whole_micro_batch_accuse_nobody(
    data: list[str], layout: str, ranks: int, tmp_path: Path
) -> None:
    flags = ["--layout", layout, "--set", "train_steps=4"]
    checks = checked(tmp_path, MODEL, *flags, data=data, ranks=ranks)
    assert invalid(checks) == []
    assert checks["final-check"].verdict == "ok"


def test_a_parameter_without_a_gradient_lets_a_checkpoint_be_written(tmp_path: Path) -> None:
    """A user may mean it: it is suspect there as it is at the end."""
    unused = MODEL.replace(
        "self.lin = nn.Linear(inputs, outputs)",
        "self.lin, self.other = nn.Linear(inputs, outputs), nn.Linear(3, 3)",
    )
    assert unused != MODEL
    flags = ["--layout", "dp2", "--set", "train_steps=6", "--set", "save_every=2"]
    data = [*IMAGES[:-1], "batch_size=16"]
    checks = checked(tmp_path, unused, *flags, data=data, ranks=2)
    assert list(tmp_path.glob("out/cells/*/*/checkpoints/*"))
    assert checks["gradients used"].verdict == "suspect"
    assert invalid(checks) == []


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("nn.LazyLinear(outputs)", "lin.weight: found no shape yet, as of a lazy module; allowed:"),
        (
            "nn.Linear(inputs, outputs); self.to = lambda *_: self.double()",
            "lin.weight: found float64; allowed: the experiment's float32",
        ),
    ],
)
def test_parameters_that_cannot_train_are_named(made: str, told: str, tmp_path: Path) -> None:
    text = MODEL.replace("nn.Linear(inputs, outputs)", made)
    assert text != MODEL
    (tmp_path / "centred.py").write_text(text)
    command = ["run", "--model", "centred:Centred", *GRAPHS, "--out", tmp_path / "out"]
    with started(command, 1, tmp_path, plant=partial(add_folder, tmp_path)) as running:
        assert running.wait() == [2], running.err(0)
    assert f"model centred:Centred: layer out, {told}" in running.err(0)


def test_a_parameter_of_two_layers_is_named(tmp_path: Path) -> None:
    shared = MODEL.replace("class Out(", "SHARED = nn.Parameter(torch.ones(()))\n\n\nclass Out(")
    shared = shared.replace("super().__init__()", "super().__init__(); self.shared = SHARED")
    shared = shared.replace(
        "class Centre(nn.Module):",
        """class Centre(nn.Module):
    def __init__(self):
        super().__init__()
        self.also = SHARED
""",
    )
    (tmp_path / "centred.py").write_text(shared)
    command = ["run", "--model", "centred:Centred", *GRAPHS, "--out", tmp_path / "out"]
    with started(command, 1, tmp_path, plant=partial(add_folder, tmp_path)) as running:
        assert running.wait() == [2], running.err(0)
    assert "layer out, shared: found one of layer centre; allowed: parameters" in running.err(0)


NORMED = MODEL.replace(
    "self.lin = nn.Linear(inputs, outputs)",
    "self.lin = nn.utils.parametrizations.spectral_norm(nn.Linear(inputs, outputs))",
)


def recomputed_from_moved_buffers(folder: Path) -> None:
    add_folder(folder)
    recomputation._copies = lambda buffers: buffers


@pytest.mark.parametrize(
    ("planted", "cell"),
    [
        (False, GRAPHS),
        (True, GRAPHS),
        (False, [*IMAGES, "--set", "engine=torchgpipe", "--layout", "pp2"]),
    ],
    ids=["sound", "planted", "torchgpipe"],
)
def test_forwards_computed_again_from_buffers_that_moved_are_found(
    planted: bool, cell: list[str], tmp_path: Path
) -> None:
    """Spectral norm moves its vectors in each forward, and its output is of them."""
    assert NORMED != MODEL
    flags = ["--set", "checkpoint=always", "--set", "train_steps=3"]
    plant = recomputed_from_moved_buffers if planted else None
    checks = checked(tmp_path, NORMED, *flags, data=cell, plant=plant)
    assert checks["self-check"].values["lost_in_rounding"] == []
    assert checks["self-check"].verdict == ("invalid" if planted else "ok")


COUNTING = MODEL.replace(
    "        return x - x.mean(0)",
    """        self.calls += self.training
        return x / (1 + self.calls)

    def __init__(self):
        super().__init__()
        self.calls = 0""",
)
COOLING = COUNTING.replace("self.calls = 0", "self.calls, self.odd = 1, {nn.ReLU: lambda: 1}")
COOLING = COOLING.replace(
    "self.calls += self.training", "self.calls *= 0.9 if self.training else 1"
)
LATE = COUNTING.replace("self.calls = 0", "pass").replace(
    "self.calls += self.training", "self.calls = getattr(self, 'calls', 0) + self.training"
)
FOLDED = COUNTING.replace("self.calls = 0", "self.ready = False").replace(
    "self.calls += self.training",
    """if self.training or not self.ready:
            self.calls, self.ready = torch.full((), 2.0), not self.training""",
)
CACHING = COUNTING.replace(
    "return x / (1 + self.calls)",
    """if getattr(self, "rows", None) != len(x):
            self.rows, self.table = len(x), torch.ones(len(x), 1)
        return x * self.table / (1 + self.calls)""",
)


@pytest.mark.quick("text0", "text3")
@pytest.mark.parametrize("text", [COUNTING, COOLING, LATE, FOLDED, CACHING])
def test_a_number_that_training_moves_is_that_of_the_evaluation(text: str, tmp_path: Path) -> None:
    """As of a layer that warms up: the twin begins with what the run has counted; but not where
    a flag tells of a tensor that the twin does not have."""
    assert "calls" in text
    checks = checked(tmp_path, text, "--layout", "pp2", "--set", "train_steps=3", ranks=2)
    assert invalid(checks) == []
    assert checks["final-check"].verdict == "ok"


BUFFERS = {
    "places": ("torch.arange(9)", "x * torch.ones(9)[self.held].sum()"),
    "a mask": ("torch.tensor(True)", "x.masked_fill(~self.held, 0)"),
    "infinite numbers": ("torch.tensor([0.0, -torch.inf])", "x * self.held.exp()[0]"),
    "none": ("torch.tensor([1.0, torch.nan])", "x * self.held[0]"),
    "complex numbers": ("torch.tensor([1j, 2.0])", "x * self.held.abs().prod()"),
    "a mean that is no norm's": ("torch.ones(3)", "x * self.running_mean.sum()"),
    "half precision": ("torch.ones(3, dtype=torch.bfloat16)", "x * self.held.sum().float()"),
}
"""What is in a buffer, and what a layer makes of it."""


def holding(buffer: str, computes: str) -> str:
    return MODEL.replace(
        "        return x - x.mean(0)",
        f"""        x = x * torch.ones(2)[self.places].sum()
        return {computes}

    def __init__(self):
        super().__init__()
        self.register_buffer("held", {buffer})
        self.register_buffer("running_mean", torch.ones(3))
        self.places = nn.Parameter(torch.arange(2), requires_grad=False)""",
    ).replace("kind().to(options.dtype)", "kind()")


@pytest.mark.quick("a mask", "complex numbers")
@pytest.mark.parametrize("kind", BUFFERS)
def test_a_buffer_may_hold_anything_that_is_dense(kind: str, tmp_path: Path) -> None:
    flags = ["--set", "train_steps=4", "--set", "save_every=2"]
    checks = checked(tmp_path, holding(*BUFFERS[kind]), *flags)
    assert invalid(checks) == []
    for name in ("self-check", "last self-check", "final-check"):
        assert checks[name].verdict == "ok"
    assert list(tmp_path.glob("out/cells/*/*/checkpoints/*"))


def test_a_sparse_buffer_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "centred.py").write_text(holding("torch.eye(3).to_sparse()", "x"))
    command = ["run", "--model", "centred:Centred", *IMAGES, "--out", tmp_path / "out"]
    with started(command, 1, tmp_path, plant=partial(add_folder, tmp_path)) as running:
        assert running.wait() == [2], running.err(0)
    told = "layer centre, held: found a sparse tensor; allowed: dense buffers"
    assert f"model centred:Centred: {told}" in running.err(0)


@pytest.mark.quick("0")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_torchs_batchnorm_in_images_accuses_nobody(seed: int, tmp_path: Path) -> None:
    flags = ["--set", "train_steps=4", "--set", f"seed={seed}"]
    assert invalid(checked(tmp_path, NORMALIZING, *flags)) == []


FAST = ["--set", "optimizer={name: adam, lr: 0.1}", "--set", "train_steps=60"]
"""Units are soon saturated: what a normalisation makes of them is rounding a hundred times."""


def after_each_step(does: Callable[[Stage], None], folder: Path) -> None:
    add_folder(folder)

    def step(true: Callable[..., Any], engine: SequentialEngine, *args: Any) -> Any:
        found = true(engine, *args)
        does(engine.plan.stage)
        return found

    around(SequentialEngine, "train_step", step)


def scale_a_gradient(stage: Stage) -> None:
    for name, parameter in stage.named_parameters():
        if "narrow" in name and parameter.grad is not None:
            parameter.grad.mul_(0.99)


def scale_a_variance(stage: Stage) -> None:
    for name, buffer in stage.named_buffers():
        if name.endswith("running_var"):
            buffer.mul_(1.001)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        (
            "return self.norm(self.lin(x).tanh())",
            "self.last = self.norm(self.lin(x).tanh())\n        return self.last",
        ),
        ("return self.lin(x)\n", "x = self.lin(x)\n        return x - x.amax(1, True)\n"),
    ],
    ids=["alone", "an output kept", "a maximum, whose backward compares"],
)
def test_saturated_units_before_batchnorm_accuse_nobody(
    before: str, after: str, tmp_path: Path
) -> None:
    assert before in NORMALIZING
    layers = NORMALIZING.replace(before, after) if before else NORMALIZING
    assert invalid(checked(tmp_path, layers, *FAST)) == []


@pytest.mark.quick("scale_a_gradient-gradients: narrow")
@pytest.mark.parametrize(
    ("does", "told"), [(scale_a_gradient, "gradients: narrow"), (scale_a_variance, "buffers: ")]
)
def test_what_is_wrong_with_them_is_found(
    does: Callable[[Stage], None], told: str, tmp_path: Path
) -> None:
    checks = checked(tmp_path, NORMALIZING, *FAST, plant=partial(after_each_step, does))
    assert "self-check" in invalid(checks)
    assert told in checks["self-check"].detail


def shifted(before: str) -> str:
    """A layer whose true gradient is nothing, as BatchNorm, which keeps statistics, follows."""
    found = (
        MODEL.replace(
            """            Layer("centre", (width,), (width,)),""",
            """            Layer("shift", (width,), (width,)),
            Layer("centre", (width,), (width,)),""",
        )
        .replace('"centre": Centre}', '"centre": Centre, "shift": Shift}')
        .replace(
            "class Centre(nn.Module):",
            """class Centre(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(192)
""",
        )
        .replace("return x - x.mean(0)", "return self.norm(x)")
    )
    width = "()" if "*" in before else "192"
    return (
        found
        + f"""

class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.ones({width}))

    def forward(self, x, context):
        return {before}
"""
    )


@pytest.mark.quick("x * self.by-pp2-float32")
@pytest.mark.parametrize(
    ("shift", "layout", "dtype"),
    [
        ("x + self.by", "seq", "float32"),
        ("x + self.by", "dp2", "float64"),
        ("x * self.by", "pp2", "float32"),
    ],
)
def test_a_gradient_of_nothing_before_batchnorm_accuses_nobody(
    shift: str, layout: str, dtype: str, tmp_path: Path
) -> None:
    flags = ["--layout", layout, "--set", "train_steps=4", "--set", f"dtype={dtype}"]
    ranks = 1 if layout == "seq" else 2
    checks = checked(
        tmp_path, shifted(shift), *flags, data=[*IMAGES[:-1], "batch_size=16"], ranks=ranks
    )
    assert invalid(checks) == []
    assert "rounding hides of the gradient of shift" in checks["self-check"].detail


@pytest.mark.quick("pp2")
@pytest.mark.parametrize("layout", ["seq", "pp2"])
def test_a_parameters_hook_accuses_nobody(layout: str, tmp_path: Path) -> None:
    """As one that clips gradients, which it does to each micro-batch's."""
    clipped = MODEL.replace(
        "self.lin = nn.Linear(inputs, outputs)",
        "self.lin = nn.Linear(inputs, outputs)\n"
        "        self.lin.weight.register_hook(lambda given: given.clamp(-1e-3, 1e-3))",
    )
    assert clipped != MODEL
    flags = ["--layout", layout, "--set", "train_steps=4"]
    checks = checked(tmp_path, clipped, *flags, ranks=1 if layout == "seq" else 2)
    assert invalid(checks) == []
    assert checks["slope"].verdict == "suspect"


def out_scaled_in_backward(folder: Path) -> None:
    add_folder(folder)
    scaled_gradient(0.99, "out")


@pytest.mark.parametrize("planted", [False, True])
def test_a_layer_that_compares_hides_no_wrong_gradient(planted: bool, tmp_path: Path) -> None:
    """No draw of rounding may decide otherwise than the run."""
    winners = MODEL.replace(
        "return x - x.mean(0)",
        "return torch.where(x * 2.0 >= (x * 2.0).topk(64, 1).values[:, -1:], x, 0.0 * x)",
    )
    assert winners != MODEL
    plant = out_scaled_in_backward if planted else None
    found = invalid(checked(tmp_path, winners, "--set", "train_steps=4", plant=plant))
    assert {"self-check", "last self-check"} <= set(found) if planted else found == []


@pytest.mark.quick("seq-reentrant checkpoint", "pp2-weight_norm")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        *(
            (
                "self.lin(x).tanh()",
                "checkpoint(lambda y: self.lin(y).tanh(), x, use_reentrant=" + reentrant + ")",
            )
            for reentrant in ("False", "True")
        ),
        ("self.norm = nn.Linear(16, 16)", "self.norm = nn.utils.weight_norm(nn.Linear(16, 16))"),
        (
            "self.norm = nn.Linear(16, 16)",
            "self.norm = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))",
        ),
    ],
    ids=["checkpoint", "reentrant checkpoint", "weight_norm", "weight_norm parametrization"],
)
@pytest.mark.parametrize("layout", ["seq", "pp2"])
def test_torchs_own_tools_in_a_layer_accuse_nobody(
    before: str, after: str, layout: str, tmp_path: Path
) -> None:
    assert before in NORMALIZING
    layers = "from torch.utils.checkpoint import checkpoint\n" + NORMALIZING.replace(before, after)
    flags = ["--layout", layout, "--set", "train_steps=4"]
    assert invalid(checked(tmp_path, layers, *flags, ranks=1 if layout == "seq" else 2)) == []


@pytest.mark.quick("channels last-seq", "transposed-seq")
@pytest.mark.parametrize("layout", ["seq", "pp2"])
@pytest.mark.parametrize(
    ("made", "computes"),
    [
        (
            "nn.Conv2d(4, 4, 3, padding=1).to(memory_format=torch.channels_last)",
            "self.lin(x) + self.made(x.view(-1, 4, 2, 2)).flatten(1)",
        ),
        (
            "nn.ParameterList([torch.randn(16, 16).mul(0.25).t()])",
            "self.lin(x) + x @ self.made[0]",
        ),
        (
            "nn.ParameterList([torch.randn(16, 32)[:, ::2].mul_(0.25)])",
            "self.lin(x) + x @ self.made[0]",
        ),
    ],
    ids=["channels last", "transposed", "every second column"],
)
def test_parameters_in_another_order_of_memory_train_as_others(
    made: str, computes: str, layout: str, tmp_path: Path
) -> None:
    layers = computing(f"return {computes}", f"self.made = {made}")
    flags = ["--layout", layout, "--set", "train_steps=4"]
    checks = checked(tmp_path, layers, *flags, ranks=1 if layout == "seq" else 2)
    assert invalid(checks) == []


def test_a_module_that_a_forward_makes_leaves_the_final_check_unknown(tmp_path: Path) -> None:
    computes = """y = self.lin(x)
        if not hasattr(self, 'late'):
            self.late = nn.Module()
            self.late.register_buffer('q', y.detach().mean(0))
        return y - self.late.q"""
    checks = checked(tmp_path, computing(computes, ""), "--set", "train_steps=4")
    assert invalid(checks) == []
    assert checks["final-check"].verdict == "unknown"
    assert "have no place for" in checks["final-check"].detail


def test_a_layer_that_cannot_compute_some_rows_hides_no_wrong_ones(tmp_path: Path) -> None:
    computes = """y = self.lin(x)
        if self.training:
            self.kept = y.detach().mean(0)
        return y if context.microbatch == 0 else y - self.kept"""
    layers = computing(computes, "").replace("_context", "context")
    plant = outputs_too_large_in_evaluation
    checks = checked(tmp_path, layers, "--set", "train_steps=4", plant=plant)
    assert checks["final-check"].verdict == "invalid"


FOLDED = """class Out(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.lin = nn.Linear(inputs, outputs, bias=False)
        self.w = None

    def forward(self, x, context):
        if self.training:
            self.w = None
            return self.lin(x)
        if self.w is None:
            self.w = self.lin.weight.detach() * 1.0
        return nn.functional.linear(x, self.w)
"""


def evaluated_with_weights_of_before(folder: Path) -> None:
    """Of the step before, once a run's own engine has done more steps than a check's."""
    add_folder(folder)
    seen: dict[int, list[list[Tensor]]] = {}

    def step(true: Callable[..., Any], engine: SequentialEngine, *args: Any) -> Any:
        held = [p.detach().clone() for p in engine.plan.stage.parameters()]
        seen.setdefault(id(engine), []).append(held)
        return true(engine, *args)

    def evaluate(true: Callable[..., Any], engine: SequentialEngine, *args: Any) -> Any:
        steps = seen.get(id(engine), [])
        if len(steps) <= 4:
            return true(engine, *args)
        parameters = [*engine.plan.stage.parameters()]
        present = [p.detach().clone() for p in parameters]
        try:
            put(parameters, steps[-1])
            return true(engine, *args)
        finally:
            put(parameters, present)

    around(SequentialEngine, "train_step", step)
    around(SequentialEngine, "evaluate", evaluate)


def put(parameters: list[Any], values: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


FOLDED_NUMBER = """class Out(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.lin = nn.Linear(inputs, outputs).requires_grad_(False)
        self.alpha = nn.Parameter(torch.ones(()))
        self.scale = None

    def forward(self, x, context):
        if self.training:
            self.scale = None
            return self.lin(x) * self.alpha
        if self.scale is None:
            self.scale = float(self.alpha)
        return self.lin(x) * self.scale
"""


@pytest.mark.parametrize(
    ("folded", "rate"), [(FOLDED, 0.01), (FOLDED_NUMBER, 0.1)], ids=["a weight", "a number"]
)
def test_what_an_evaluation_keeps_hides_no_wrong_outputs(
    folded: str, rate: float, tmp_path: Path
) -> None:
    """The twin is given what training left: with the layer's own it would hold the run against
    itself."""
    layers = MODEL[: MODEL.index("class Out(nn.Module):")] + folded
    flags = ["--set", "train_steps=12", "--set", f"optimizer={{name: adam, lr: {rate}}}"]
    checks = checked(tmp_path, layers, *flags, plant=evaluated_with_weights_of_before)
    assert "final-check" in invalid(checks)
    sound = checked(tmp_path / "sound", layers, *flags)
    assert invalid(sound) == []


SPARSE = computing(
    "return self.lin(x) + self.rows((x.detach().sigmoid() * 7.99).long()).sum(1)",
    "self.rows = nn.Embedding(8, 16, sparse=True)",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "engine", "ranks"),
    [
        ("seq", "native", 1),
        ("pp2", "native", 2),
        ("dp2-pp2", "native", 4),
        ("pp2", "pipelining", 2),
        ("pp2", "torchgpipe", 1),
    ],
)
def test_sparse_gradients_are_taken(layout: str, engine: str, ranks: int, tmp_path: Path) -> None:
    flags = ["--layout", layout, "--set", f"engine={engine}", "--set", "train_steps=4"]
    flags += ["--set", "batch_size=16"]
    assert invalid(checked(tmp_path, SPARSE, *flags, ranks=ranks)) == []


SPARSE_FOUND = "found sparse gradients in replicas of engine pipelining; allowed: sparse=False, or"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SPARSE, SPARSE_FOUND),
        (
            computing(
                "return self.lin(x) + nn.functional.embedding("
                "(x.detach().sigmoid() * 7.99).long(), self.rows, sparse=True).sum(1)",
                "self.rows = nn.Parameter(torch.randn(8, 16))",
            ),
            SPARSE_FOUND,
        ),
        (
            computing("return self.lin(x)", "self.other = nn.Linear(3, 3)"),
            "found some that no gradient reaches in replicas of engine pipelining; allowed: all in",
        ),
    ],
    ids=["sparse module", "sparse function", "unused"],
)
def test_what_replicas_of_torchs_engine_do_not_take_is_refused(
    text: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "centred.py").write_text(text)
    command = ["run", "--model", "centred:Centred", *IMAGES, "--microbatches", "2"]
    command += ["--layout", "dp2-pp2", "--set", "engine=pipelining", "--set", "batch_size=16"]
    plant = partial(add_folder, tmp_path)
    with started([*command, "--out", tmp_path / "out"], 4, tmp_path, plant=plant) as running:
        assert 2 in running.wait()
    (path,) = tmp_path.glob("out/cells/*/*/result.json")
    failure = Result.read(path).failure
    assert failure is not None
    assert told in failure.error


def out_turned_in_backward(folder: Path) -> None:
    add_folder(folder)
    scaled_gradient(-1.0, "narrow")


def outputs_too_large_in_evaluation(folder: Path) -> None:
    add_folder(folder)

    def made(true: Callable[..., Any], engine: SequentialEngine, *args: Any) -> None:
        true(engine, *args)
        layer = engine.plan.stage.layers[2]
        layer.register_forward_hook(lambda m, _, out: out if m.training else out * 1.0005)

    around(SequentialEngine, "__init__", made)


@pytest.mark.quick("gradient")
@pytest.mark.parametrize(
    ("computes", "plant", "told"),
    [
        (
            "torch.softmax(self.lin(x) * 2e3, 1)",
            out_turned_in_backward,
            "% of the gradient of narrow, so that little can be told of that",
        ),
        (
            "nn.functional.layer_norm(self.lin(x) * 1e-3 + 3, (16,))",
            outputs_too_large_in_evaluation,
            "% of the outputs of centre",
        ),
    ],
    ids=["gradient", "outputs"],
)
def test_what_rounding_may_hide_is_told_with_its_size(
    computes: str, plant: Callable[[Path], None], told: str, tmp_path: Path
) -> None:
    """An error of that size may pass, and must not pass for one that was looked for."""
    layers = NORMALIZING.replace("self.norm(self.lin(x).tanh())", computes)
    assert layers != NORMALIZING
    checks = checked(tmp_path, layers, "--set", "train_steps=4", plant=plant)
    check = checks["self-check"]
    assert check.verdict == "invalid" or told in check.detail


@pytest.mark.quick("seq-never")
@pytest.mark.parametrize("checkpoint", ["never", "always"])
@pytest.mark.parametrize("layout", ["seq", "dp2"])
def test_layers_may_keep_what_cannot_be_copied(
    layout: str, checkpoint: str, tmp_path: Path
) -> None:
    text = MODEL.replace(
        "self.lin = nn.Linear(inputs, outputs)",
        """self.lin = nn.Linear(inputs, outputs)
        self.lock, self.file, self.more = threading.Lock(), open(os.devnull, "w"), (n for n in "ab")
        self.within, self.calls = {"locks": [threading.Lock()], "calls": 0}, 0""",
    ).replace(
        "return self.lin(x)",
        """with self.lock:
            self.calls += 1
            self.within["calls"] += 1
            print(self.calls, file=self.file)
        return self.lin(x)""",
    )
    flags = ["--layout", layout, "--set", f"checkpoint={checkpoint}", "--set", "train_steps=4"]
    flags += ["--set", "batch_size=16", "--set", "save_every=2"]
    ranks = 1 + (layout == "dp2")
    checks = checked(tmp_path, f"import os\nimport threading\n{text}", *flags, ranks=ranks)
    assert invalid(checks) == []
    assert checks["self-check"].verdict == checks["final-check"].verdict == "ok"


def not_evaluated_again(folder: Path) -> None:
    add_folder(folder)
    EvaluationWatch.evaluate_again = lambda *_: None  # type: ignore[method-assign,assignment]


def test_an_evaluation_that_is_watched_changes_no_training(tmp_path: Path) -> None:
    """Of layers that count their evaluations, and draw in them."""
    layers = computing(
        "x = self.lin(x) * (1 + 0.01 * len(self.seen) + 0.1 * random.random())\n"
        "        if not self.training: self.seen.append(np.random.rand())\n"
        "        return x if self.training else self.lin(x)",
        "self.seen = []",
    )
    text = "import random\nimport numpy as np\n" + layers
    flags = ["--set", "train_steps=4", "--set", "test_every=2"]
    losses = []
    for name, plant in (("watched", None), ("not", not_evaluated_again)):
        checked(tmp_path / name, text, *flags, plant=plant)
        (records,) = (tmp_path / name).glob("out/cells/*/*/rank-0000.jsonl*")
        steps = [line for line in read_lines(records) if line["kind"] == "step"]
        losses.append([step["loss"] for step in steps])
    assert losses[0] == losses[1]


def recomputed_in_half_precision(folder: Path) -> None:
    add_folder(folder)

    def later(true: Callable[..., Tensor], stage: Stage, x: Tensor, context: Context) -> Tensor:
        if recomputation.is_recomputing() and context.step >= 2:
            x = x + (x.detach().half().to(x.dtype) - x.detach())
        return true(stage, x, context)

    around(Stage, "_through_layers", later)


@pytest.mark.parametrize(
    ("planted", "cell"),
    [(False, []), (True, []), (True, ["--set", "engine=torchgpipe", "--layout", "pp2"])],
    ids=["sound", "planted", "planted in torchgpipe"],
)
def test_forwards_computed_again_give_the_same_outputs(
    planted: bool, cell: list[str], tmp_path: Path
) -> None:
    """Of a layer that draws, of which the self-check can tell nothing, and in a late step."""
    assert DROPPING != MODEL
    flags = [*cell, "--set", "checkpoint=always", "--set", "train_steps=3"]
    plant = recomputed_in_half_precision if planted else None
    checks = checked(tmp_path, DROPPING, *flags, plant=plant)
    assert invalid(checks) == (["recomputed outputs"] if planted else [])
    assert checks["recomputed outputs"].values == ({"found": 1} if planted else {"looks": 3})


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "steps"), [("1.0", 300), ("10.0", 200)])
def test_a_loss_that_is_sure_of_its_labels_accuses_nobody(
    rate: str, steps: int, tmp_path: Path
) -> None:
    """What is left of its gradient is rounding, of the softmax too."""
    flags = ["--set", f"optimizer={{name: adam, lr: {rate}}}", "--set", f"train_steps={steps}"]
    checks = checked(tmp_path, MODEL.replace("return x - x.mean(0)", "return x"), *flags)
    assert invalid(checks) == []
    hidden = "but for what rounding hides" in checks["last self-check"].detail
    assert hidden == (rate == "1.0")


def test_a_parameter_that_a_forward_moves_is_named(tmp_path: Path) -> None:
    """Each replica moves its own: it must be a buffer."""
    parameter = MODEL.replace(
        "return x - x.mean(0)",
        "self.code.data += self.training; return x / float(self.code)",
    ).replace(
        "class Centre(nn.Module):",
        """class Centre(nn.Module):
    def __init__(self):
        super().__init__()
        self.code = nn.Parameter(torch.ones(()), requires_grad=False)
""",
    )
    buffer = parameter.replace(
        "self.code = nn.Parameter(torch.ones(()), requires_grad=False)",
        "self.register_buffer('code', torch.ones(()))",
    )
    checks = checked(tmp_path, parameter, "--set", "train_steps=4")
    assert "centre.code moved in the step and does not train" in checks["optimizer"].detail
    assert "centre.code moved in step 0 and does not train" in checks["self-check"].detail
    assert invalid(checked(tmp_path / "buffer", buffer, "--set", "train_steps=4")) == []


@pytest.mark.quick("seq")
@pytest.mark.parametrize("layout", ["seq", "pp2"])
def test_a_layer_may_change_its_input_in_a_hook(layout: str, tmp_path: Path) -> None:
    hooked = MODEL
    for name in ("Flat", "Centre"):
        hooked = hooked.replace(
            f"class {name}(nn.Module):",
            f"""class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(lambda _, given: (2 * given[0] + 1, *given[1:]))
""",
        )
    flags = ["--layout", layout, "--set", "train_steps=4", "--set", "checkpoint=always"]
    assert invalid(checked(tmp_path, hooked, *flags, ranks=1 + (layout == "pp2"))) == []
