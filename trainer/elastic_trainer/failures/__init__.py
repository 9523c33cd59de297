"""What is known of a worker that failed: its error, signal, log, node, and who is told."""
