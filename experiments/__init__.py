"""What the queue policy is worth: simulated experiments that write `docs/experiments.md`."""
