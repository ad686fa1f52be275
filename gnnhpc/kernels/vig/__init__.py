"""ViG's layers as small networks for each node: in C++, in Triton and in torch."""
