"""Reads and checks the configuration of Volcano's scheduler; pure, knows no queue policy."""
