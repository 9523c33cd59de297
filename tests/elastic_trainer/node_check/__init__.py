"""Guards the check of nodes: who meets whom, who is broken. members.py plays nodes."""
