"""Pure: how large each elastic job should be, from a snapshot of the queue."""
