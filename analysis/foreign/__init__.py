"""Imports step logs of other programs: tables, speedups and a page.

Imports figures, papers, summary, render and stats.
"""
