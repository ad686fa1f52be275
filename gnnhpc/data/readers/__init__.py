"""Readers of files: published layouts, custom graphs, pickled arrays."""
