"""Guards elastic_trainer.inject: the trainer brought into images that lack it."""
