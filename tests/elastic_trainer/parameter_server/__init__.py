"""Guards parameter servers: rows that move, are copied, saved. servers.py starts them."""
