"""Which agent hosts the coordinator once the one that did is gone, and never two at a time."""
