"""The files of a run: their names, record schema, writer, failures, resume points, provenance.

Free of torch; imports core.
"""
