"""Guards the election of another coordinator. world.py has agents that lose each other."""
