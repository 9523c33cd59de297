"""Says when jobs will start and end: the simulator from a cluster as it is, many times, with what
is not known drawn from the past. Pure: chance is an argument."""
