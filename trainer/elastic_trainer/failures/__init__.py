"""Evidence of failed workers: error, signal, log, node; and who is told."""
