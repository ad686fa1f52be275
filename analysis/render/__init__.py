"""How text, tables and pages are written out, whatever is in them.

Imports nothing of analysis.
"""
