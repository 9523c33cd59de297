"""Does training converge alike while workers come and go? Wide & deep on MovieLens, really run."""
