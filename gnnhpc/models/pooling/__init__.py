"""The layer in which the nodes of a graph become one row, in our form and in the libraries'."""
