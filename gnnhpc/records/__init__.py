"""What a run leaves behind: file names, record schema, writers, failures, provenance.

Free of torch; imports core and spec.
"""
