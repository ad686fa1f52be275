"""How fast the project is: one process, many processes, the suite's own commands.

    python -m benchmarks                            all groups but the large ones
    python -m benchmarks recording vig --quick      two of them, in small: to see that they run

Every row of `report/bench.csv` has `ratio = reference / ours`, so more is better, and `goal` is the
smallest ratio that is good enough. Contestants have a process each and take turns (A B A B) while
the others sleep, so other work on the machine affects all of them, and none computes in another's
memory. `ours` and `reference` are medians; the interval of 95 % is that of `analysis` for pairs,
of which a round is one. Where the reference is a limit, the goal is 1. A library runs in every form
it has, at the batch that suits it best; the goal is for the fastest of its forms.

This package is no part of the installed project.
"""
