"""Step logs of other programs: tables, speedups and a page about them.

Imports figures, papers and below.
"""
