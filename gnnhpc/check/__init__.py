"""Whether to believe a run: observations, audit, verification against a sequential twin.

Imports train and below.
"""
