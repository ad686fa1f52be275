"""How fast the project is: one process, many processes, the suite itself.

python -m benchmarks                     everything, about a quarter of an hour on two cores
python -m benchmarks one many --quick    some of it, in small: to see that it runs

Every row of `report/bench.csv` has `ratio = reference / ours`, so more is better, and `goal` is
the least that will do. Where there is nothing to compare with, `reference` is a limit and the goal
is 1. Contestants have a process each and take turns (A B A B) while the others sleep, so that what
the machine does besides hits all alike, and none computes in another's memory; `ours` and
`reference` are medians. A peer runs in every form it has, at the batch that suits it best; the goal
is held against its best form.

This package stands beside the project and is no part of the installed one.
"""
