"""Graph networks of many layers: a residual GCN and GCNII."""
