"""What is learnt and how it is judged: loss, tally, metrics. Imports batches and below."""
