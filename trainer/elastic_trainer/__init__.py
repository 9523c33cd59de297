"""The data plane: what runs inside the pods. It never imports kubernetes or volcano_elastic."""
