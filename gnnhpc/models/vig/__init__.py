"""Vision GNN over a pixel grid, as J. Raffi and P. Dazzi's study builds it."""
