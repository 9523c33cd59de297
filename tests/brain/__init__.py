"""Guards volcano_elastic.brain: advice from a history. runs.py makes runs, postgres.py a server."""
