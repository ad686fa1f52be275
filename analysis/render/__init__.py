"""Writes text, tables and documents: HTML, Markdown, LaTeX, CSV, the terminal.

Imports nothing of analysis.
"""
