"""The same requests to two API servers, and what differs in their answers."""
