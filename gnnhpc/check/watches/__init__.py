"""What is watched while a run goes on, one file for each thing; nothing within a measured step.

Imports train and below.
"""
