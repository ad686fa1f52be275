"""Validates a run at its start, its end and its checkpoints, and never inside a timed step.

Imports training's set-up and loop, and below.
"""
