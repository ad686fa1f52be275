"""The twin, held to PyG's layers, torch's optimizers and BatchNorm, and the loaders' own rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gnnhpc.batches.image_loader import epoch_indices
from gnnhpc.check.plain.masks import plain_weights
from gnnhpc.check.twin.data import labelled_neighbourhood
from gnnhpc.check.twin.optimizer_rule import OptimizerRule
from gnnhpc.check.twin.pieces import Piece, chunk_pieces, graph_piece, image_pieces
from gnnhpc.check.twin.plain_model import PlainModel, plain_layer
from gnnhpc.check.twin.raw_images import raw_images
from gnnhpc.check.twin.training import evaluate, train_step
from gnnhpc.data.graphs import load_graph
from gnnhpc.data.images import load_images
from gnnhpc.engines.clock import Clock
from gnnhpc.engines.stage import build_stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.experiment.experiment import Experiment, OptimizerConfig
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.kernels.mask import layer_mask
from tests.tools.cells import gat, vig
from tests.tools.data_files import cifar_records, write_binary, write_python

MODELS: dict[str, Experiment] = {
    "vig": vig(dtype="float64", microbatches=2),
    "vig, deferred": vig(dtype="float64", microbatches=2, batchnorm="deferred"),
    "gat": gat(dtype="float64", microbatches=1),
    "gat of three layers": gat(
        dtype="float64", microbatches=1, model={"name": "gat", "layers": 3, "dropout": 0.0}
    ),
} | {
    " ".join(map(str, model.values())): gat(dtype="float64", microbatches=1, model=model)
    for model in (
        {"name": "gatv2", "layers": 3},
        {"name": "gcn", "layers": 3},
        {"name": "sage"},
        {"name": "sage", "aggregator": "max"},
        {"name": "sage", "aggregator": "pool"},
        {"name": "gin"},
        {"name": "graphconv"},
        {"name": "resgcn", "layers": 4},
        {"name": "gcnii", "layers": 4},
    )
}


def plain(experiment: Experiment) -> PlainModel:
    outlines = outline(experiment)
    layers = [plain_layer(experiment.model, each) for each in outlines]
    return PlainModel(experiment, outlines, [each for each in layers if each is not None])


def pieces_of(experiment: Experiment, step: int = 0) -> list[Piece]:
    if experiment.data.facts().kind == "images":
        return image_pieces(experiment, *raw_images(experiment.data, None, "train"), "train", step)
    return [graph_piece(experiment, load_graph(experiment.data, None))]


def run_pieces(experiment: Experiment, step: int = 0) -> list[Piece]:
    """As the layers of the suite take them."""
    if experiment.data.facts().kind == "images":
        return pieces_of(experiment, step)
    return chunk_pieces(experiment, outline(experiment), load_graph(experiment.data, None), step)


@pytest.mark.parametrize("name", MODELS)
def test_the_twin_computes_what_pygs_layers_compute(name: str) -> None:
    """Two training steps and an evaluation in float64: outputs, loss, gradients, statistics."""
    experiment = MODELS[name]
    images = experiment.model.name == "vig"
    theirs_is = "reference" if images else "pyg"
    changed = experiment.model.model_copy(update={"implementation": theirs_is})
    outlines, twin = outline(experiment), plain(experiment)
    stage = build_stage(
        experiment.model_copy(update={"model": changed}),
        outlines,
        [range(len(outlines))],
        StepTimer(Clock(torch.device("cpu"))),
    )
    parameters = {n: v.double().numpy() for n, v in twin.initial().items()}
    assert parameters.keys() == dict(stage.named_parameters()).keys()
    for key, value in stage.named_parameters():
        np.testing.assert_allclose(value.detach().numpy(), parameters[key], rtol=1e-15)
    for step in range(2):
        found = train_step(
            twin, pieces_of(experiment, step), parameters, step, experiment.model.loaded.outputs
        )
        stage.zero_grad()
        total, labelled = torch.zeros(()).double(), 0
        outputs = []
        for piece in run_pieces(experiment, step):
            assert piece.context is not None
            given_inputs = piece.inputs if piece.own_inputs is None else piece.own_inputs
            output = stage(given_inputs, piece.context)
            outputs.append(output)
            functional = torch.nn.functional
            loss = functional.cross_entropy if images else functional.nll_loss
            total = total + loss(output, piece.targets["train"], reduction="sum", ignore_index=-100)
            labelled += int((piece.targets["train"] >= 0).sum())
        (total / labelled).backward()
        stage.end_minibatch()
        assert found.loss == pytest.approx(float(total.detach()) / labelled, rel=1e-12)
        for ours, theirs in zip(found.activations, outputs, strict=True):
            assert isinstance(ours[-1], Tensor)
            torch.testing.assert_close(ours[-1], theirs.detach(), rtol=1e-10, atol=1e-12)
        for key, parameter in stage.named_parameters():
            assert parameter.grad is not None
            scale = float(
                np.linalg.norm(np.concatenate([g.ravel() for g in found.gradients.values()]))
            )
            away = np.linalg.norm(found.gradients[key] - parameter.grad.numpy())
            assert away < 1e-11 * scale, key
        for key, buffer in stage.named_buffers():
            torch.testing.assert_close(twin.buffers(0)[key].to(buffer.dtype), buffer)
    stage.eval()
    for ours, piece in zip(
        evaluate(twin, pieces_of(experiment), parameters, 0), run_pieces(experiment), strict=True
    ):
        assert isinstance(ours[-1], Tensor)
        given_inputs = piece.inputs if piece.own_inputs is None else piece.own_inputs
        assert piece.context is not None
        with torch.no_grad():
            theirs = stage(given_inputs, piece.context)
        torch.testing.assert_close(ours[-1], theirs, rtol=1e-10, atol=1e-12)


@given(
    st.integers(0, 2**20),
    st.integers(0, 10**6),
    st.sampled_from(["layer0.dropout", "layer1.attention"]),
    st.floats(0, 0.999),
    st.lists(st.integers(0, 2**34), min_size=1, max_size=50),
)
def test_masks_are_the_runs(seed: int, step: int, layer: str, p: float, numbers: list[int]) -> None:
    entries = torch.tensor(numbers)
    expected = layer_mask(seed, step, layer, p).weights(entries, torch.float64)
    found = torch.from_numpy(plain_weights(seed, step, layer, p, entries.numpy()))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_the_optimizers_rule_is_torchs(name: str) -> None:
    config = OptimizerConfig(name=name, lr=0.01, weight_decay=0.1)  # type: ignore[arg-type]
    rule, draw = OptimizerRule(config, "float64"), np.random.default_rng(0)
    value = {"a": draw.normal(size=(3, 4)), "b": draw.normal(size=5)}
    tensors = {n: torch.nn.Parameter(torch.from_numpy(v.copy())) for n, v in value.items()}
    kind = torch.optim.Adam if name == "adam" else torch.optim.SGD
    optimizer = kind(tensors.values(), lr=0.01, weight_decay=0.1)
    for _ in range(4):
        gradients = {n: draw.normal(size=v.shape) for n, v in value.items()}
        for n, tensor in tensors.items():
            tensor.grad = torch.from_numpy(gradients[n].copy())
        optimizer.step()
        value = rule.after(value, gradients)
        for n, tensor in tensors.items():
            np.testing.assert_allclose(value[n], tensor.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("write", [write_binary, write_python])
def test_raw_images_are_those_of_the_files(write: Any, tmp_path: Path) -> None:
    for number, name in enumerate(["data_batch_1", "data_batch_2", "test_batch"]):
        write(tmp_path, name, cifar_records(12, number))
    experiment = vig(data={"name": "cifar10"})
    for split in ("train", "test"):
        pixels, labels = raw_images(experiment.data, tmp_path, split)  # type: ignore[arg-type]
        images = load_images(experiment.data, tmp_path, split)  # type: ignore[arg-type]
        assert np.array_equal(pixels, images.pixels)
        assert np.array_equal(labels, images.labels)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 20))
def test_pieces_are_the_loaders_samples(
    replicas: int, microbatches: int, rows: int, step: int
) -> None:
    """Every image is its own number, so that the pieces tell which they are."""
    layout = "seq" if replicas == 1 else f"dp{replicas}"
    experiment = vig(
        layout=layout,
        microbatches=microbatches,
        batch_size=rows * microbatches,
        data={"name": "synthetic-cifar10", "image_size": 4, "train": 64, "test": 64},
    )
    pixels = np.arange(64, dtype=np.uint8).reshape(64, 1, 1, 1)
    labels = np.arange(64)
    pieces = image_pieces(experiment, pixels, labels, "train", step)
    assert len(pieces) == replicas * microbatches
    for replica in range(replicas):
        _, wanted = epoch_indices(64, rows * microbatches, replicas, replica, 0, step)
        mine = [p for p in pieces if p.replica == replica]
        assert [p.microbatch for p in mine] == list(range(microbatches))
        assert np.array_equal(np.concatenate([p.targets["train"].numpy() for p in mine]), wanted)
        values = torch.cat([p.inputs for p in mine if isinstance(p.inputs, Tensor)]).flatten()
        torch.testing.assert_close(values * 255, torch.from_numpy(wanted).double())


@given(st.integers(20, 140))
def test_a_slice_of_a_graph_is_a_graph_with_labels(count: int) -> None:
    graph = load_graph(gat().data, None)
    part = labelled_neighbourhood(graph, count)
    assert part.nodes == count
    assert all(bool(mask.any()) for mask in part.masks.values())
    source, target = part.edges
    number = target * count + source
    assert bool((number.diff() > 0).all())
    assert part.features.shape == (count, graph.features.shape[1])
    assert int(part.edges.max()) < count
