"""The protocol of agents, shard clients and the coordinator, and the token they show."""
