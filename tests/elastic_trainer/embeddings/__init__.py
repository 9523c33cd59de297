"""Guards tables split over ranks: rows, moves, commits. table_job.py trains with them."""
