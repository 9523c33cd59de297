"""Guards elastic_trainer.failures: what is known of a failed worker, and whose failure it was."""
