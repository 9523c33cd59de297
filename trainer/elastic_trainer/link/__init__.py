"""The socket between a node's agent and its workers, both ends; imports none of our packages."""
