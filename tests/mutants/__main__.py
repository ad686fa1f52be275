"""`python -m tests.mutants [NAME...]`: how many mutants of each target the unit tests kill."""

from __future__ import annotations

import argparse
import os
from collections import Counter

import tests.mutants
from tests.mutants.mutations import mutants
from tests.mutants.targets import TARGETS
from tests.mutants.trial import ROOT, prepare, try_mutant

LEAST_SHARE = 0.9


def main() -> int:
    """0 when at least nine in ten mutants of every target are killed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=tests.mutants.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TARGETS)}")
    names = parser.parse_args().names or TARGETS
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        parser.error(f"found {unknown[0]!r}; allowed: {', '.join(TARGETS)}")
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    prepare()
    shares = []
    for name in names:
        verdicts = _try_all(name)
        count = verdicts.total()
        killed = count - verdicts["survived"]
        shares.append(killed / count)
        print(f"{name}: {killed} of {count} killed ({shares[-1]:.1%})", flush=True)
    return 0 if min(shares) >= LEAST_SHARE else 1


def _try_all(name: str) -> Counter[str]:
    """The verdicts on a target's mutants; prints those that survive."""
    files, unit_tests = TARGETS[name]
    verdicts: Counter[str] = Counter()
    for file in files:
        path = ROOT / file
        verdict, spent = try_mutant(path, None, unit_tests, 300.0)
        if verdict != "survived":
            raise SystemExit(f"{name}: the tests fail without any change: {unit_tests}")
        for mutant in mutants(path.read_text(encoding="utf-8")):
            verdict, _ = try_mutant(path, mutant.tree, unit_tests, 3.0 + 4.0 * spent)
            verdicts[verdict] += 1
            if verdict == "survived":
                print(f"{file}:{mutant.line}: {mutant.change}: {mutant.text}", flush=True)
    return verdicts


if __name__ == "__main__":
    raise SystemExit(main())
