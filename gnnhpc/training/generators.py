"""The process's generators, from which layers of a user's model may draw: seeded by the experiment,
and kept in checkpoints. Ours draw from seed, step and place, and need none.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.models.seeding import seed_all


def seed_generators(seed: int, rank: int) -> None:
    """Torch's, Python's and numpy's, to what follows from both numbers."""
    seed_all(random.Random(f"gnnhpc/{seed}/{rank}").getrandbits(63))


def generator_states(mesh: Mesh) -> dict[str, Tensor]:
    """This rank's, by their names in a checkpoint."""
    version, words, gauss = random.getstate()
    numpy: Any = np.random.get_state(legacy=False)
    numpy["state"]["key"] = numpy["state"]["key"].tolist()
    states = {
        "generator": torch.get_rng_state(),
        "python's generator": _as_tensor([version, words, gauss]),
        "numpy's generator": _as_tensor(numpy),
    }
    for number, device in enumerate(mesh.devices):
        if device.type == "cuda":
            states[f"generator of device {number}"] = torch.cuda.get_rng_state(device)
    return {f"{name}/{mesh.rank}": state for name, state in states.items()}


def restore_generators(mesh: Mesh, states: Mapping[str, Tensor]) -> None:
    """Set the generators whose states a checkpoint has, as `generator_states` made them."""
    here = {name.rpartition("/")[0]: state for name, state in states.items()}
    if "generator" in here:
        torch.set_rng_state(here["generator"])
    if "python's generator" in here:
        version, words, gauss = _from_tensor(here["python's generator"])
        random.setstate((version, tuple(words), gauss))
    if "numpy's generator" in here:
        numpy = _from_tensor(here["numpy's generator"])
        numpy["state"]["key"] = np.array(numpy["state"]["key"], dtype=np.uint32)
        np.random.set_state(numpy)
    for number, device in enumerate(mesh.devices):
        if f"generator of device {number}" in here:
            torch.cuda.set_rng_state(here[f"generator of device {number}"], device)


def _as_tensor(state: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)


def _from_tensor(state: Tensor) -> Any:
    return json.loads(bytes(state.tolist()))
