"""Guards volcano_elastic.scheduler_conf: reading and checking Volcano's configuration."""
