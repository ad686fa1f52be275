"""Getting data sets from where they are published, and whether what is here is whole.

Imports data and its readers.
"""
