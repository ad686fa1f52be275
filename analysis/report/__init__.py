"""Writes the report of a run: folder, page, sections, tables."""
