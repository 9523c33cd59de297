"""Pure: a snapshot as frozen values, with all that follows from them."""
