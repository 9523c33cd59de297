"""The page's contents, from observed objects to JSON values. Pure: no clock, no I/O."""
