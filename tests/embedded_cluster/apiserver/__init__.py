"""Guards embedded_cluster.apiserver, as its clients see it."""
