"""Guards volcano_elastic.adapters: sizes, pods and patches of each kind; a kind is one entry."""
