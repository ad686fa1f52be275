"""Layouts, rank map, schedules, balance, a model on paper, errors: no files, no torch.

Imports no other room.
"""
