"""Virtual nodes whose pods are local processes, or only pretend to be."""
