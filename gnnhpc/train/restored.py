"""Whether what a resume put in place is what the checkpoint was written from, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.stage import Stage
from gnnhpc.models.loose_state import OF_GENERATOR, loose_state
from gnnhpc.models.tensor_bytes import checksum
from gnnhpc.records.resume import FACTS_FILE
from gnnhpc.train.generators import generator_states


def checksums(mesh: Mesh, stage: Stage, optimizer: torch.optim.Optimizer | None) -> dict[str, int]:
    """CRC-32 of each tensor of this rank that training goes on from, generators' states with them.

    By the model's own names, so that another layout finds its own; buffers by replica and how many
    replicas there are, as another number of them averages them.
    """
    found: dict[str, Tensor] = {f"parameter {n}": p for n, p in stage.named_parameters()}
    if optimizer is not None:
        for name, parameter in stage.named_parameters():
            state = optimizer.state.get(parameter, {})
            found |= {f"optimizer's {key} of {name}": value for key, value in state.items()}
    place = _place(mesh)
    found |= {f"buffer {name} {place}": buffer for name, buffer in stage.named_buffers()}
    found |= generator_states(mesh)
    return {name: checksum(tensor) for name, tensor in found.items()}


def loose_states(mesh: Mesh, stage: Stage) -> dict[str, str]:
    """What a user's layers keep beside these, by names of the model and of the replica."""
    found = loose_state(stage)
    return {f"{name} of replica {mesh.replica}": told for name, told in found.items()}


def not_restored(path: Path, mesh: Mesh, stage: Stage) -> str:
    """What of that is not as it was when the checkpoint was written, in words; empty if all is.

    What is not there yet, as of a layer that has computed nothing, is not compared, as it may come
    to the same again: but for generators, which begin anew.
    """
    facts = json.loads((path / FACTS_FILE).read_text())
    told: dict[str, str] = facts.get("loose", {})
    now = loose_states(mesh, stage)
    changed = sorted(name for name in told.keys() & now.keys() if told[name] != now[name])
    words = [f"{name} was {told[name]} and is {now[name]}" for name in changed]
    generators = [name for name, words in told.items() if words.startswith(OF_GENERATOR)]
    later = _of_stage(generators, "", f"of replica {mesh.replica}", stage) - now.keys()
    buffers = _of_stage(facts.get("tensors", {}), "buffer ", _place(mesh), stage)
    later |= buffers - {f"buffer {name} {_place(mesh)}" for name, _ in stage.named_buffers()}
    return "; ".join([*words, *(f"{name}, which is not there yet" for name in sorted(later))])


def _of_stage(told: Collection[str], kind: str, place: str, stage: Stage) -> set[str]:
    """Of what a checkpoint tells of, what layers of this stage have here."""
    layers = tuple(f"{kind}{layer.name}." for layer in stage.outlines)
    return {name for name in told if name.startswith(layers) and name.endswith(f" {place}")}


def _place(mesh: Mesh) -> str:
    return f"of replica {mesh.replica} of {mesh.layout.replicas}"


def check_restored(
    path: Path, mesh: Mesh, stage: Stage, optimizer: torch.optim.Optimizer | None
) -> None:
    """Raises GnnhpcError naming a tensor that is not as it was when the checkpoint was written.

    Older checkpoints do not say.
    """
    told: dict[str, int] = json.loads((path / FACTS_FILE).read_text()).get("tensors", {})
    found = checksums(mesh, stage, optimizer)
    names = {name for name, _ in stage.named_parameters()}
    # What the optimizer no longer has is missing from what was found.
    mine = {name for name in told if name in found or name.rpartition(" of ")[2] in names}
    wrong = sorted(name for name in mine if found.get(name) != told[name])
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise GnnhpcError(
            f"{path.name}: {wrong[0]}{more} are not as they were when it was written: the resume "
            "has not restored them"
        )
