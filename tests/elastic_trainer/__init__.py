"""Guards elastic_trainer. torchrun_job.py starts real torchruns, fault_harness.py breaks them."""
