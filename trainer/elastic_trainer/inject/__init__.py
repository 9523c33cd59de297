"""Brings this package into images that don't have it: a folder to copy, and what finds it there."""
