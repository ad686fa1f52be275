"""The models again in plain torch, whole and in float64: what a run's ranks are held against.

Written for clarity: dense products and index_add, no kernel, engine, chunk or mask of the run.
Imports models' settings and data, not what it judges.
"""
