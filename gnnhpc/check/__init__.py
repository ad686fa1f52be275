"""Checks of a run: against a twin at its start and end, by watches on its way, by their audit.

Imports train and below.
"""
