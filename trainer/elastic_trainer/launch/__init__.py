"""Starts worker processes warm: a zygote that has torch imported forks them."""
