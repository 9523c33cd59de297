"""The protocol of agents, shard clients and the coordinator, and the token that all calls show."""
