"""Simulates the planner on a trace of jobs: `plan` driven by a virtual clock.

Pure: files are read and pictures drawn in `cli`.
"""
