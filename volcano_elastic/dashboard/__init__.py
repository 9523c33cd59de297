"""`volcano-elastic dashboard`: a page that shows queues, jobs and nodes over time, and every why.

It reads the cluster and never writes to it. What the page says is worked out in `model`, which is
pure; `history` keeps it, and the rest observes and serves.
"""
