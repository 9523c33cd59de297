"""Guards volcano_elastic.simulator: the planner under a virtual clock, and its bounds."""
