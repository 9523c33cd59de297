"""What agents, shard clients and the coordinator say to each other, and the token they show."""
