"""Writes karate.npz: a graph of your own is one file of arrays.

W. W. Zachary, An Information Flow Model for Conflict and Fission in Small Groups (1977), as PyG has
it: 34 members, their friendships, and four communities.
"""

from pathlib import Path

import numpy as np
from torch_geometric.datasets import KarateClub

club = KarateClub()[0]
members = np.arange(club.num_nodes)
train = club.train_mask.numpy()
np.savez(
    Path(__file__).with_name("karate.npz"),
    edge_index=club.edge_index.numpy(),
    x=club.x.numpy(),
    y=club.y.numpy(),
    train_mask=train,
    val_mask=~train & (members % 3 == 0),
    test_mask=~train & (members % 3 != 0),
)
