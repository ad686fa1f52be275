"""Checkpoints that any layout can read: tensors are stored under the model's own names.

torch.distributed.checkpoint writes the tensors: stages write in parallel, and a model that is cut
elsewhere reads the tensors it needs. The rest of a run's state is small: the next step (data order
and dropout follow from it and the seed), the number of evaluations, and each rank's generators. A
checkpoint is written under a temporary name and renamed once every rank is done.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.core.versioned_json import with_digest, write_atomically
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.stage import Stage
from gnnhpc.records.choose_resume_point import CHECKPOINT_VERSION, METADATA_FILE, digests

# torch warns of `no_dist`, which is right for a single process.
warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)

KEPT = 2
"""Checkpoints that an attempt keeps: the newest, and one more in case that is damaged."""


def save(
    attempt: AttemptPaths,
    mesh: Mesh,
    stage: Stage,
    optimizer: torch.optim.Optimizer | None,
    step: int,
    metadata: Mapping[str, Any],
) -> None:
    """Write a checkpoint before training step `step`; a collective of all ranks.

    `metadata` has the other fields of a `ResumePoint`. Raises GnnhpcError if it cannot be written;
    earlier checkpoints stay.
    """
    final = attempt.checkpoints / f"step-{step:08d}"
    temporary = final.with_name(f".{final.name}.partial")
    if final.exists():
        return
    try:
        dcp.save(
            _generator_states(mesh) | _state(mesh, stage, optimizer),
            checkpoint_id=temporary,
            process_group=mesh.control,
            no_dist=mesh.control is None,
        )
        if mesh.rank == 0:
            written = {"version": CHECKPOINT_VERSION, "step": step, "files": digests(temporary)}
            text = json.dumps(with_digest({**metadata, **written}))
            write_atomically(temporary / METADATA_FILE, text + "\n")
            temporary.rename(final)
            # They are large, and are not results.
            for old in sorted(attempt.checkpoints.glob("step-*"))[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise GnnhpcError(f"{temporary}: cannot be written ({error.strerror})") from None
    mesh.barrier()


def load(path: Path, mesh: Mesh, stage: Stage, optimizer: torch.optim.Optimizer | None) -> None:
    """Load this rank's stage and optimizer, whatever layout wrote them; a collective.

    Raises GnnhpcError with the name of a tensor that the checkpoint does not have, or has in
    another shape.
    """
    # An optimizer has no state before its first step; give it the shapes to load into.
    if optimizer is not None:
        _prepare(optimizer)
    state = _state(mesh, stage, optimizer, loads=True)
    known = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    # Some generators' states have another size each time.
    generators = {
        name: torch.empty(one.size, dtype=torch.uint8)
        for name in _generator_states(mesh)
        if isinstance(one := known.get(name), TensorStorageMetadata)
    }
    missing = sorted(state.keys() - known.keys())
    if missing:
        raise GnnhpcError(f"{path}: has no {missing[0]}; it is of another model")
    try:
        dcp.load(
            state | generators,
            checkpoint_id=path,
            process_group=mesh.control,
            no_dist=mesh.control is None,
        )
    except CheckpointException as error:
        # No Exception: it would pass by all that ends an attempt in words.
        causes = {str(each[0]) for each in error.failures.values()}
        raise GnnhpcError(f"{path}: cannot be read ({'; '.join(sorted(causes))})") from None
    _restore_generators(mesh, generators)


def _state(
    mesh: Mesh, stage: Stage, optimizer: torch.optim.Optimizer | None, *, loads: bool = False
) -> dict[str, Tensor]:
    """This rank's tensors by global name.

    Replicas hold the same parameters, so one of them writes those; buffers are each replica's own,
    as BatchNorm's running statistics differ until an evaluation averages them.
    """
    place = f"replica{mesh.replica}" if mesh.replica else "model"
    # Also such buffers as torch leaves out of a module's state: a layer may move them.
    state: dict[str, Tensor] = {f"{place}/{name}": each for name, each in stage.named_buffers()}
    if mesh.replica == 0 or loads:
        for name, parameter in stage.named_parameters():
            state[f"model/{name}"] = parameter.detach()
            for key, value in optimizer.state[parameter].items() if optimizer else ():
                state[f"optimizer/{name}/{key}"] = value
    return state


def _prepare(optimizer: torch.optim.Optimizer) -> None:
    """Step once with zero gradients and a learning rate of zero, so that the state exists."""
    rates = [group["lr"] for group in optimizer.param_groups]
    held = [(p, p.grad) for group in optimizer.param_groups for p in group["params"]]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for parameter, gradient in held:
        parameter.grad = gradient


def _generator_states(mesh: Mesh) -> dict[str, Tensor]:
    """This rank's generators, which layers of a custom model may use, by their names in a
    checkpoint."""
    held = pickle.dumps((random.getstate(), np.random.get_state()))
    states = {
        "torch": torch.get_rng_state(),
        "python and numpy": torch.frombuffer(bytearray(held), dtype=torch.uint8),
    }
    for number, device in enumerate(mesh.devices):
        if device.type == "cuda":
            states[f"device {number}"] = torch.cuda.get_rng_state(device)
    return {f"generators/{mesh.rank}/{name}": state for name, state in states.items()}


def _restore_generators(mesh: Mesh, states: Mapping[str, Tensor]) -> None:
    states = {name.rpartition("/")[2]: state for name, state in states.items()}
    torch.set_rng_state(states["torch"])
    python, numpy = pickle.loads(bytes(states["python and numpy"].tolist()))
    random.setstate(python)
    np.random.set_state(numpy)
    for number, device in enumerate(mesh.devices):
        if device.type == "cuda":
            torch.cuda.set_rng_state(states[f"device {number}"], device)
