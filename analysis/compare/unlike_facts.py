"""What two runs differ in besides their settings: code, versions, machines, time; a line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from analysis.across.likeness import differences
from analysis.compare.matched import Match
from analysis.loading.one_measurement import copied_cells
from analysis.loading.run import Run
from analysis.summary.configurations import Configuration

MANY = 6


def unlike_lines(a: Run, b: Run, pairs: Sequence[Match]) -> Iterator[str]:
    """Each difference once, with the share of configurations that have it where not all do."""
    train = [match for match in pairs if match.phase == "train"]
    yield from _facts(train)
    yield from _own_sources(train)
    hosts = [_hosts(run) for run in (a, b)]
    if hosts[0] != hosts[1]:
        yield f"machines: {_listed(hosts[0])} in A, {_listed(hosts[1])} in B"
    yield _when(train)


def copied_line(a: Run, b: Run) -> Iterator[str]:
    """Of cells whose records are the same file in both: they tell nothing of a difference."""
    copied = copied_cells(a, b)
    if copied:
        first = f"such as {copied[0]}"
        yield f"one measurement in both, so no difference can show: {len(copied)} cells, {first}"


def flag_lines(pairs: Sequence[Match]) -> Iterator[str]:
    """Flags of the cells that are compared, of each run."""
    train = [match for match in pairs if match.phase == "train"]
    for side, rows in (("A", [m.a for m in train]), ("B", [m.b for m in train])):
        cells = [str(flags) for one in rows for flags in one.used["flags"]]
        raised = Counter(flag for flags in cells for flag in set(flags.split(";")) if flag)
        if raised:
            words = ", ".join(
                f"{flag} {count} of {len(cells)}" for flag, count in sorted(raised.items())
            )
            yield f"flagged in {side}: {words}"


def _facts(train: Sequence[Match]) -> Iterator[str]:
    found = Counter(
        (name, here, there)
        for match in train
        for name, (here, there) in differences(match.a.facts, match.b.facts).items()
    )
    for (name, here, there), times in found.items():
        share = "" if times == len(train) else f" ({times} of {len(train)} configurations)"
        yield f"{name}: {here} in A, {there} in B{share}"
    measured = [match for match in train if match.a.facts and match.b.facts]
    unknown = dict.fromkeys(
        name
        for match in measured
        for name in (*match.a.facts, *match.b.facts)
        if (match.a.facts.get(name) is None) != (match.b.facts.get(name) is None)
    )
    if unknown:
        yield f"recorded by one of them only: {', '.join(unknown)}"
    if not found and not unknown:
        yield "nothing that both recorded of code, versions, CPU, threads and kernels"


def _own_sources(train: Sequence[Match]) -> Iterator[str]:
    """Versions of a user's own model, whose digest is a setting."""
    found = {
        (match.a.settings["model"], *digests)
        for match in train
        if (digests := tuple(one.settings.get("model_digest") for one in (match.a, match.b)))
        and digests[0] != digests[1]
        and all(isinstance(digest, str) for digest in digests)
    }
    for model, here, there in sorted(found):
        yield f"sources of {model}: {here} in A, {there} in B"


def _hosts(run: Run) -> list[str]:
    found = {host for text in run.cells["hosts"] for host in str(text).split(";") if host}
    return sorted(found)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return (", ".join(names[:MANY]) or "none recorded") + more


def _when(train: Sequence[Match]) -> str:
    """Whether both met the same hours of the machine, which intervals cannot tell."""
    turns = sum(match.in_turn for match in train)
    if turns == len(train):
        return "time: repeats of both were measured in turn, and are compared in pairs"
    spans = [_span([match.a for match in train]), _span([match.b for match in train])]
    some = f", but for {turns} configurations" if turns else ""
    return (
        f"time: A started its cells from {spans[0]}, B from {spans[1]}, not in turn{some}: what "
        "changed on the machines between them counts as a difference of the runs"
    )


def _span(rows: Sequence[Configuration]) -> str:
    times = sorted(str(time) for one in rows for time in one.used["started_at"] if time)
    return f"{times[0][:19]} to {times[-1][:19]}" if times else "unknown times"
