"""Counts how often each sample is used in an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnnhpc.batches.batch import SampleIds
from gnnhpc.ranks.mesh import Mesh


@dataclass
class SampleUses:
    """Of each epoch, how often this replica was given each of `total` samples."""

    total: int
    epochs: dict[int, np.ndarray[Any, np.dtype[np.int16]]] = field(default_factory=dict)

    def count(self, epoch: int, sample_ids: SampleIds) -> None:
        counts = self.epochs.setdefault(epoch, np.zeros(self.total, dtype=np.int16))
        np.add.at(counts, sample_ids, 1)

    def repeated(self, mesh: Mesh) -> int:
        """Samples that were used more than once in an epoch, over all replicas; a collective.

        Counted on first stages only: the other stages of a replica have the same samples, which
        the checksums show.
        """
        counts = self.epochs if mesh.is_first else {}
        repeated = sum(np.flatnonzero(seen > 1).size for seen in counts.values())
        packed = {epoch: np.packbits(seen > 0).tobytes() for epoch, seen in counts.items()}
        everyone = [found for found in mesh.gather_objects(packed) if found]
        for epoch in {epoch for found in everyone for epoch in found}:
            bits = [
                np.unpackbits(np.frombuffer(found[epoch], dtype=np.uint8))
                for found in everyone
                if epoch in found
            ]
            together = np.sum(np.stack(bits), axis=0)
            repeated += int((together > 1).sum())
        return repeated
