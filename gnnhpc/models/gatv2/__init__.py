"""GATv2: Brody, Alon and Yahav 2022."""
