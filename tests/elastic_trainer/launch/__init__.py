"""Guards elastic_trainer.launch: warm workers, and when they can't be."""
