"""One rank of one cell: its attempt, from the launcher's environment to its exit status.

Imports validation, training and below.
"""
