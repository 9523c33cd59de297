"""Pure: jobs of other kinds whose size the planner decides (Job, JobSet, TrainJob), as data."""
