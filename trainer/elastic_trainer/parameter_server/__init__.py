"""Parameter servers: embedding tables in processes of their own, and their workers' side."""
