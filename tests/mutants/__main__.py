"""`python -m tests.mutants [NAME...]`: how many mutants of each target the unit tests kill."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from dataclasses import dataclass, field

import yaml

import tests.mutants
from tests.mutants.modules import TARGETS, Target
from tests.mutants.mutations import Mutant, mutants
from tests.mutants.trial import ROOT, prepare, try_mutant

ARGUED = ROOT / "tests" / "mutants" / "equivalent.yaml"
LEAST_SHARE = 0.9


@dataclass
class Score:
    """Verdicts on one target's mutants; `argued` survivors are in equivalent.yaml."""

    verdicts: Counter[str] = field(default_factory=Counter)
    survivors: list[str] = field(default_factory=list)
    argued: int = 0

    @property
    def mutants(self) -> int:
        return self.verdicts.total()

    @property
    def killed(self) -> int:
        return self.mutants - self.verdicts["survived"]

    @property
    def share(self) -> float:
        return self.killed / self.mutants if self.mutants else 1.0


def main() -> int:
    """0 when at least nine in ten mutants of every target are killed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=tests.mutants.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TARGETS)}")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in TARGETS]
    if unknown:
        parser.error(f"found {unknown[0]!r}; allowed: {', '.join(TARGETS)}")
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    prepare()
    scores = {}
    for name in given.names or TARGETS:
        scores[name] = _score(name, TARGETS[name])
        print(f"{name}: {scores[name].killed} of {scores[name].mutants} killed", flush=True)
    _print_table(scores)
    return 0 if all(score.share >= LEAST_SHARE for score in scores.values()) else 1


def _score(name: str, target: Target) -> Score:
    argued = {_key(one) for one in yaml.safe_load(ARGUED.read_text(encoding="utf-8"))}
    score = Score()
    for file in target.files:
        path = ROOT / file
        verdict, spent = try_mutant(path, None, target.tests, 300.0)
        if verdict != "survived":
            raise SystemExit(f"{name}: the tests fail without any change: {target.tests}")
        for mutant in mutants(path.read_text(encoding="utf-8")):
            verdict, _ = try_mutant(path, mutant.tree, target.tests, 3.0 + 4.0 * spent)
            score.verdicts[verdict] += 1
            if verdict == "survived":
                known = (file, mutant.text, mutant.change) in argued
                score.argued += known
                score.survivors.append(_line_of(file, mutant))
                print(f"{_line_of(file, mutant)}{', argued' if known else ''}", flush=True)
    return score


def _key(one: dict[str, str]) -> tuple[str, str, str]:
    return one["file"], one["line"], one["change"]


def _line_of(file: str, mutant: Mutant) -> str:
    return f"{file}:{mutant.line}: {mutant.change}: {mutant.text}"


def _print_table(scores: dict[str, Score]) -> None:
    print(
        f"\n{'module':12} {'mutants':>8} {'killed':>7} {'survived':>9} {'argued':>7} {'share':>7}"
    )
    for name, score in scores.items():
        survived = len(score.survivors)
        print(
            f"{name:12} {score.mutants:8} {score.killed:7} {survived:9} {score.argued:7} "
            f"{score.share:7.1%}"
        )


if __name__ == "__main__":
    raise SystemExit(main())
