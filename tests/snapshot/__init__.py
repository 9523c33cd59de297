"""Guards volcano_elastic.snapshot: a file gives the same snapshot again, or a refusal."""
