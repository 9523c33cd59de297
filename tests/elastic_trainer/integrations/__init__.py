"""Guards elastic_trainer.integrations with Hugging Face's and Lightning's own libraries."""
