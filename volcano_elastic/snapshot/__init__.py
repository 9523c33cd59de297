"""The cluster as the planner is shown it: values, their file, and what they may not hold."""
