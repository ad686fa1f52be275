"""The audit's checks, each a pure function of all ranks' observations.

Imports records and below, and `check.observations`.
"""
