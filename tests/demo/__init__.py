"""Guards volcano_elastic.demo."""
