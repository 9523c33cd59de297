"""Guards elastic_trainer.feed: newcomers who follow a state while the others train."""
