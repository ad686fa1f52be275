"""Data sets: published files, custom graphs, synthetic data, downloads, and the cache.

Imports core and graphs.
"""
