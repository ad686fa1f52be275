"""Words and pure mathematics: layouts, schedules, balance, a model on paper, errors.

Imports nothing of ours, nor torch.
"""
