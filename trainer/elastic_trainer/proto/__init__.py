"""The wire format between agents, workers and the coordinator (generated code is committed)."""
