"""Data sets: where they lie, how they are read, and generators that need no files.

`roots` is free of torch, so that a login node can ask whether the data are there.
"""
