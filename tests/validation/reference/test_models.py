"""The reference trains and evaluates as PyG's layers do with torch's loss, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.kernels.dispatch import plain_torch
from gnnhpc.models.model import BuildOptions
from gnnhpc.validation.engine_parity import reference_batches
from gnnhpc.validation.reference.batches import ReferenceBatch
from gnnhpc.validation.reference.fresh_layers import FreshLayers, seed_of
from gnnhpc.validation.reference.training_step import evaluate, train_step
from gnnhpc.validation.steps.parity_slice import ParitySlice
from tests.tools.cells import gat, vig

MODELS: dict[str, Experiment] = {
    "vig": vig(dtype="float64", microbatches=2),
    "vig, deferred": vig(dtype="float64", microbatches=2, batchnorm="deferred"),
} | {
    " ".join(map(str, model.values())): gat(dtype="float64", microbatches=1, model=model)
    for model in (
        {"name": "gat"},
        {"name": "gatv2", "layers": 3},
        {"name": "sage", "aggregator": "pool"},
        {"name": "gcnii", "layers": 4},
    )
}


def library_layers(experiment: Experiment) -> nn.Module:
    """PyG's layers with the experiment's initial values."""
    model: Any = experiment.model.model_copy(update={"implementation": "pyg"})
    options, layers = BuildOptions(torch.float64, experiment.batchnorm), nn.ModuleDict()
    for spec in outline(experiment):
        torch.manual_seed(seed_of(experiment.seed, spec.name))
        layers[spec.name.replace(".", "/")] = model.build(spec, options)
    return layers


def named(layers: nn.Module, what: str) -> dict[str, Tensor]:
    tensors = getattr(layers, f"named_{what}")()
    return {name.replace("/", "."): tensor for name, tensor in tensors}


def through(layers: nn.Module, batch: ReferenceBatch) -> Tensor:
    x: Any = batch.inputs
    for layer in layers.children():
        x = layer(x, batch.context)
    output: Tensor = x
    return output


@pytest.mark.parametrize("name", MODELS)
def test_two_steps_and_an_evaluation(name: str) -> None:
    experiment = MODELS[name]
    layers, images = library_layers(experiment), experiment.model.name == "vig"
    part = ParitySlice(experiment, outline(experiment))
    model = FreshLayers(experiment, part.layer_specs)
    data, run = (reference_batches(part, None, None, rows) for rows in ("graph", "run"))
    parameters = {n: p.detach().numpy() for n, p in named(layers, "parameters").items()}
    model.restore(0, {n: b.detach().double().numpy() for n, b in named(layers, "buffers").items()})
    loss_of = functional.cross_entropy if images else functional.nll_loss
    for step in range(2):
        batches = data("train", step)
        with plain_torch():
            found = train_step(model, batches, parameters, experiment.outputs)
        layers.zero_grad()
        total, counted, outputs = torch.zeros(()).double(), 0, []
        for batch in run("train", step):
            outputs.append(through(layers, batch))
            target = batch.targets["train"]
            total = total + loss_of(outputs[-1], target, reduction="sum", ignore_index=-100)
            counted += int((target >= 0).sum())
        (total / counted).backward()  # type: ignore[no-untyped-call]
        for module in layers.modules():
            if hasattr(module, "end_minibatch"):
                module.end_minibatch()
        assert found.loss == pytest.approx(float(total.detach()) / counted, rel=1e-11)
        for ours, theirs in zip(found.activations, outputs, strict=True):
            torch.testing.assert_close(ours[-1], theirs.detach(), rtol=1e-9, atol=1e-11)
        largest = max(float(np.linalg.norm(g)) for g in found.gradients.values())
        for key, parameter in named(layers, "parameters").items():
            assert parameter.grad is not None
            away = np.linalg.norm(found.gradients[key] - parameter.grad.numpy())
            assert away < 1e-10 * largest, key
        for key, buffer in named(layers, "buffers").items():
            torch.testing.assert_close(model.buffers[0][key].to(buffer.dtype), buffer)
    layers.eval()
    with plain_torch():
        activations = evaluate(model, data("train", 0), parameters)
    for ours, batch in zip(activations, run("train", 0), strict=True):
        with torch.no_grad():
            theirs = through(layers, batch)
        torch.testing.assert_close(ours[-1], theirs, rtol=1e-9, atol=1e-11)
