"""Guards when jobs start and end, with intervals. world.py builds queues with a past."""
