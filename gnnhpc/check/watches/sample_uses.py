"""Counts how often each sample is used in an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gnnhpc.batches.batch import SampleIds
from gnnhpc.distributed.mesh import Mesh


@dataclass(frozen=True)
class EpochUses:
    """Which samples an epoch used, a bit each, and how many of them more than once."""

    used: bytes
    repeated: int
    steps: int


@dataclass
class SampleUses:
    """Of each epoch, how often this replica was given each of `total` samples."""

    total: int
    steps_per_epoch: int = 1
    """Of an epoch with fewer, not all samples can have come."""
    _epochs: dict[int, EpochUses] = field(default_factory=dict)
    """Those that are over."""
    _epoch: int = -1
    _given: list[SampleIds] = field(default_factory=list)
    """Of each step of the present epoch."""
    _whole: tuple[SampleIds, EpochUses] | None = None
    """The last epoch of one step: of a graph every epoch has the same samples."""

    def count(self, epoch: int, sample_ids: SampleIds) -> None:
        """The samples of one step; they are not copied."""
        if epoch != self._epoch:
            self._close()
            self._epoch = epoch
        self._given.append(sample_ids)

    def epochs(self) -> dict[int, EpochUses]:
        """Of all epochs, the present one included."""
        self._close()
        return self._epochs

    def together(self, mesh: Mesh) -> tuple[int, int | None]:
        """Over all replicas: samples that were used more than once in an epoch, and the fewest
        that any whole epoch used, none without one; a collective.

        Counted on first stages only: the other stages of a replica have the same samples, which
        the checksums show.
        """
        mine = self.epochs() if mesh.is_first else {}
        everyone = [found for found in mesh.gather_objects(mine) if found]
        repeated, fewest = 0, None
        counted: dict[tuple[bytes, ...], tuple[int, int]] = {}
        for epoch in {epoch for found in everyone for epoch in found}:
            uses = [found[epoch] for found in everyone if epoch in found]
            repeated += sum(each.repeated for each in uses)
            key = tuple(each.used for each in uses)
            if key not in counted:
                counted[key] = _in_several_and_any(key)
            several, any_of_them = counted[key]
            repeated += several
            if max(each.steps for each in uses) >= self.steps_per_epoch:
                fewest = any_of_them if fewest is None else min(fewest, any_of_them)
        return repeated, fewest

    def _close(self) -> None:
        """Count the present epoch."""
        if not self._given:
            return
        whole = self._given[0] if len(self._given) == 1 else None
        if whole is not None and self._whole is not None and self._whole[0] is whole:
            uses = self._whole[1]
        else:
            ids = np.concatenate(self._given)
            counts = np.bincount(ids[(ids >= 0) & (ids < self.total)], minlength=self.total)
            used, repeated = np.packbits(counts > 0).tobytes(), int((counts > 1).sum())
            uses = EpochUses(used, repeated, len(self._given))
        self._whole = None if whole is None else (whole, uses)
        self._epochs[self._epoch] = uses
        self._given = []


def _in_several_and_any(packed: tuple[bytes, ...]) -> tuple[int, int]:
    """Samples that more than one replica used, and those that any did."""
    bits = [np.unpackbits(np.frombuffer(each, dtype=np.uint8)) for each in packed]
    uses = np.sum(np.stack(bits), axis=0)
    return int((uses > 1).sum()), int((uses > 0).sum())
