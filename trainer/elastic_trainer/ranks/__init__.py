"""A training process among the others: its rank, what the ranks tell one another, and the
connections between them."""
