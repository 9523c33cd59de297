"""Does asynchronous training converge alike while workers and parameter servers come and go?"""
