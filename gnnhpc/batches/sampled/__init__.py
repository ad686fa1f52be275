"""Mini-batches of a sampled graph: whose nodes or links, which neighbours, how they are judged."""
