"""Guards volcano_elastic.operator, on the embedded API server. process.py starts operators."""
