"""Generators of random numbers, from which a user's layers may draw."""

from __future__ import annotations

import functools

from gnnhpc.training import generators
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around

KIND = "generators"
defect = functools.partial(planted, kind=KIND)


@defect("generators that no one seeds", setting=settings.VIG)
def never_seeded() -> None:
    around(generators, "seed_generators", lambda true, seed, rank: None)


@defect("one seed for the generators of all ranks", setting=settings.VIG)
def seeded_alike() -> None:
    around(generators, "seed_generators", lambda true, seed, rank: true(seed, 0))


@defect("generators seeded whatever the seed", setting=settings.VIG)
def seeded_always() -> None:
    around(generators, "seed_generators", lambda true, seed, rank: true(17, rank))
