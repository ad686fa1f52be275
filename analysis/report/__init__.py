"""Writes the report of a run: folder, pages, sections, tables.

Imports every other package of analysis.
"""
