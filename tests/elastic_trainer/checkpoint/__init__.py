"""Guards elastic_trainer.checkpoint: what is saved comes back."""
