"""Other people's training loops on elastic data and commits; each module needs its own extra."""
