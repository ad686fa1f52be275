"""The actions on a run: submit, rerun, cancel, run on this machine.

Imports jobs.state and below.
"""
