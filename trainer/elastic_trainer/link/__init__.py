"""The worker's end of the unix socket to its agent: step boundaries, orders, saved states."""
