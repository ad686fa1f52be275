"""Writes the report of a run: folder, pages, sections, tables.

Imports every other room of analysis but foreign.
"""
