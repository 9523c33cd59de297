"""Bytes at rest: states as blobs, slots in shared memory, commits in a folder or a bucket."""
