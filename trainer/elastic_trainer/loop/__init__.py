"""ElasticLoop: a training loop whose processes live on while their world changes."""
