"""Guards README, docs, manifests and experiments: what they say is run."""
