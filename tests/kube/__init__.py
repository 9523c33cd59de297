"""Guards volcano_elastic.kube: client, informer, work queue, lease."""
