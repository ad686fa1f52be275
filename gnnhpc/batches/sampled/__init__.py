"""Mini-batches of a sampled graph: training nodes or links, their neighbours, their evaluation."""
