"""Draws the figures: a catalogue of all, a file for each family, one style.

Imports summary, timeline, render and loading.
"""
