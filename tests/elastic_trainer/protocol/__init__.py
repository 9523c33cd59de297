"""Guards elastic_trainer.protocol: who is let in by the servers of a job."""
