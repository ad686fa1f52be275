"""Every figure, one file a family, in one style.

Imports summary, timeline, render and below.
"""
