"""Defects that are planted into runs, one for each way in which people err; every one is caught.

`python -m tests.defects` plants them all and prints the matrix: defect, mechanism, verdict, cause.
"""
