"""Guards volcano_elastic.api and the CRDs: defaults, validation, quantities."""
