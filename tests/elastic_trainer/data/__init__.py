"""Guards elastic_trainer.data and .shards: every sample once, whatever happens."""
