"""Guards volcano_elastic.pytorchjob: observed state in, actions out. world.py builds jobs."""
