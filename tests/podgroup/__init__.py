"""Guards volcano_elastic.podgroup: minMember, minResources, priorities, protection."""
