"""Judges a cluster by what was observed of it: is all there that elastic jobs need, and what is the
repair? Pure; `volcano_elastic/cli/doctor.py` observes."""
