"""Guards elastic_trainer.link: its messages, and who may connect to an agent."""
