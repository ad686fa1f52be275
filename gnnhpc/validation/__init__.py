"""Validation of a run at its start, boundaries and end, by mechanisms that do not touch its steps.

See README.md in this folder for what each mechanism finds and what none of them finds.
"""
