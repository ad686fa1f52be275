"""Timelines of one step, measured and ideal, and Chrome traces of all steps.

Imports loading.
"""
