"""Guards elastic_trainer.agent, .launch, .failures and .rendezvous under real torchruns."""
