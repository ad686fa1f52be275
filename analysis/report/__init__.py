"""Writes the report of a run: folder, pages, sections, tables.

Imports everything of analysis.
"""
