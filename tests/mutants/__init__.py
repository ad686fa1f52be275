"""Mutation testing of the mathematics that no run can check for us: `python -m tests.mutants`.

Each mutant is one of the project's files with one small change, such as `<` for `<=`. The unit
tests of that file must fail on it; one that passes them all has shown what they do not look at.

A runner of our own, a few hundred lines, since the usual ones do not fit: cosmic-ray starts an
interpreter a mutant, and importing torch takes longer than the tests; mutmut rewrites every
function to dispatch on a variable, which torch.autograd's and dataclasses' decorators do not
survive. This one imports the libraries once and forks.
"""
