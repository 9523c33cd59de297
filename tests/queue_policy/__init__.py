"""Guards the planner: snapshot in, plan out. world.py builds clusters of a few lines."""
