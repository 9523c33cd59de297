"""Guards elastic_trainer.store: blobs, slots, storage."""
