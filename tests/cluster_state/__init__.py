"""Guards volcano_elastic.cluster_state; tests/queue_policy sees what plans make of it."""
