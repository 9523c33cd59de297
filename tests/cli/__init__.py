"""Guards volcano_elastic.cli: what people type and read."""
