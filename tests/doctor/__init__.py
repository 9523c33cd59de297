"""Guards volcano_elastic.doctor: a cluster's state in, what is wrong and its repair out."""
