"""The report of a run: first page, sections, tables, files.

Imports everything of analysis.
"""
