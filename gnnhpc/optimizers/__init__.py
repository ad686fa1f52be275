"""Optimizers and learning-rate schedules: settings, and how torch's optimizer is built from them.

To add one, write a class in a file of this folder and a row of `registry.py`. Imports core; imports
torch only to build an optimizer.
"""
