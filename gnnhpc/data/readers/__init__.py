"""How each layout of graph files is read: PyG's, OGB's, a user's own.

Imports what data says of published graphs and their cache.
"""
