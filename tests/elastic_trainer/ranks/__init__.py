"""Guards elastic_trainer.ranks: what training processes tell one another, and their connections."""
