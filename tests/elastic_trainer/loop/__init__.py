"""Guards elastic_trainer.loop: worlds that change in the running process."""
