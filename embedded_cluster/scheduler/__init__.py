"""Volcano's session model: which pod binds to which node, and who is evicted for whom."""
