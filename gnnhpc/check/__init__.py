"""Checks of a run: observations and their audit, verification against a sequential twin.

Imports train and below.
"""
