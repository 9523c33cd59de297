"""Brain: learns from finished and running jobs what others need, and says so; a program of its own
that the operator neither imports nor waits for."""
