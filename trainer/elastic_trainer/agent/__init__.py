"""The client side of the coordinator in each pod: one stream up, the workers' questions down."""
