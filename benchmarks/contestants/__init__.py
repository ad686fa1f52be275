"""What takes turns: steps, runs and commands of this project, and the libraries' programs.

Each function returns a function that takes a turn, and that one returns seconds or named numbers.
"""
