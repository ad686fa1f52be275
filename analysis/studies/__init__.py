"""Published studies: a folder of CSV data and a YAML of claims each, and one comparer.

Imports load, statistics, summary and render.
"""
