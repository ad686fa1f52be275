"""What changes something: submit, rerun, cancel, run here.

Imports jobs.state and below.
"""
