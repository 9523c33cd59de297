"""Guards embedded_cluster.scheduler, and its likeness to Volcano."""
