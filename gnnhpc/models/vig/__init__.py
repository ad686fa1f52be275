"""Vision GNN over a pixel grid (J.

Raffi and P. Dazzi's study).
"""
