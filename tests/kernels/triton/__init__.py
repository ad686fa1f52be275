"""Triton's programs: compiled on a GPU, or as its interpreter computes them on a CPU."""
