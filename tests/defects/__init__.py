"""Defects planted into our own code, each run as a user would run it: none may pass.

`python -m tests.defects` plants them all and prints the matrix: defect, caught by, verdict.
"""
