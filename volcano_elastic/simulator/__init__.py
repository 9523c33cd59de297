"""What the planner would make of a trace: `plan` driven by a virtual clock.

Pure: files are read and pictures drawn in `cli`.
"""
