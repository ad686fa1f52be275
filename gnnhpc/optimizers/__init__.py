"""Optimizers and learning-rate schedules: settings, and how torch's optimizer is built from them.

To add one, write a class and a row of the table in its file. Imports core; imports torch only to
build an optimizer.
"""
