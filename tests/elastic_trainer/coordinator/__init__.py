"""Guards elastic_trainer.coordinator: the pure state machine and its server."""
